"""`palestra tasks`: what there is to solve."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from palestra.cli import make
from palestra.cli.errors import UsageError
from palestra.cli.options import TaskSetName

if TYPE_CHECKING:
    from palestra.envs.validate import Report

app = typer.Typer(help="List, show, validate and make tasks.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(make.app, name="make")


@app.command("list")
def list_() -> None:
    """List the registered task sets.

    \b
    Examples:
      palestra tasks list
      palestra tasks show 'spider?path=dev.json&db_root=database'     a set with parameters
      palestra tasks show mine.jsonl                                  one task per line
      palestra tasks show acme.tasks:invoices                         a function that returns a TaskSet
    """
    from palestra.tasks.registry import registered

    table = Table("name", "what it is", box=None, pad_edge=False)
    for name, description in registered():
        table.add_row(escape(name), escape(description))
    console = Console()
    console.print(table)
    console.print(
        "\nParameters are written name?key=value&key=value; palestra tasks show NAME looks inside",
        highlight=False,
    )


@app.command()
def show(
    tasks: TaskSetName,
    task_id: Annotated[str | None, typer.Argument(metavar="TASK", help="one task, in full")] = None,
) -> None:
    """Show a task set by split and kind, or one task in full.

    \b
    Examples:
      palestra tasks show sql-tiny
      palestra tasks show sql-tiny sql-tiny/test/0003/count
    """
    from palestra.tasks.registry import find_task, load_tasks

    console = Console()
    if task_id is not None:
        console.print_json(find_task(tasks, task_id).model_dump_json())
        return
    loaded = load_tasks(tasks)
    counts = Counter((t.split, str(t.data.get("kind", t.family))) for t in loaded)
    table = Table("split", "kind", "tasks", box=None, pad_edge=False)
    for (split, kind), count in counts.items():
        table.add_row(split, escape(kind), str(count))
    console.print(f"{tasks}: {len(loaded)} tasks\n", highlight=False, markup=False)
    console.print(table)
    if loaded:
        first = f"\nfirst: {loaded[0].id}\n  {loaded[0].instruction}"
        console.print(first, highlight=False, markup=False, soft_wrap=True)


@app.command()
def validate(
    tasks: TaskSetName,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="check only the first N tasks of each split")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, metavar="N", help="processes, each of which checks one task at a time")
    ] = 1,
) -> None:
    """Check that tasks measure what they should.

    The known solution scores 1, doing nothing scores 0, known cheats score 0, and repeats agree. Exit status 1
    when a task fails a check.

    \b
    Examples:
      palestra tasks validate sql-gym --limit 50
      palestra tasks validate mine.jsonl
      palestra tasks validate swe-tiny --workers 4
    """
    from functools import partial

    from palestra.cli.progress import progress
    from palestra.envs.validate import validate_task, validate_tasks
    from palestra.tasks.registry import load_tasks
    from palestra.tasks.task import SPLITS

    console = Console()
    loaded = load_tasks(tasks)
    chosen = [t for split in SPLITS for t in list(loaded.split(split))[:limit]]
    if not chosen:
        raise UsageError(f"task set {tasks!r} is empty")
    bad = 0
    with progress(console, "validating", len(chosen)) as advance:
        one_by_one = map(validate_task, chosen)
        prepare = partial(load_tasks, tasks)
        for report in one_by_one if workers == 1 else validate_tasks(chosen, workers, prepare):
            bad += not report.passed
            if not report.passed:
                _print_problems(console, report)
            advance(f"{bad} not valid" if bad else "")
    console.print(f"{len(chosen) - bad} of {len(chosen)} tasks are valid", highlight=False)
    if bad:
        raise typer.Exit(1)


@app.command()
def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="of the world: lower-case letters, digits and _")
    ],
) -> None:
    """Write a small world of your own to start from.

    Environment, tasks, grader and test, in the folder NAME.

    \b
    Examples:
      palestra tasks new my_world
      palestra tasks validate my_world.world:load
    """
    from pathlib import Path

    from palestra.cli.scaffold import write_scaffold

    folder = write_scaffold(name, Path.cwd())
    for line in (
        f"{folder}/world.py is a world with 100 tasks, {folder.name}/test_world.py its test. Next:",
        f"  palestra tasks validate {name}.world:load",
        f"  python -m pytest {name}",
    ):
        print(line)


@app.command()
def audit(
    tasks: TaskSetName,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="only the first N tasks")] = None,
) -> None:
    """Flag annotation errors of SQL tasks.

    Gold that is empty, fails, is constant, or hangs on ties or chance. Exit status 1 when a task is suspicious. What
    the flags mean: palestra.tasks.sql.audit.

    \b
    Examples:
      palestra tasks audit 'bird?path=mini_dev_sqlite.json&db_root=dev_databases'
    """
    from palestra.cli.progress import progress
    from palestra.tasks.registry import load_tasks
    from palestra.tasks.sql.audit import audit_task

    console = Console()
    chosen = [t for t in load_tasks(tasks) if t.family == "sql"][:limit]
    if not chosen:
        raise UsageError(f"task set {tasks!r} has no SQL tasks")
    counts: Counter[str] = Counter()
    suspicious = 0
    with progress(console, "auditing", len(chosen)) as advance:
        for task in chosen:
            flags = audit_task(task)
            suspicious += bool(flags)
            counts.update(flag.kind for flag in flags)
            for flag in flags:
                line = f"{flag.task_id}\n  {flag.kind}: {flag.detail}"
                console.print(line, highlight=False, markup=False, soft_wrap=True)
            advance(f"{suspicious} suspicious" if suspicious else "")
    what = ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
    console.print(
        f"{suspicious} of {len(chosen)} tasks are suspicious{f': {what}' if what else ''}", highlight=False
    )
    if suspicious:
        raise typer.Exit(1)


def _print_problems(console: Console, report: Report) -> None:
    """The failed checks of one task; checks that failed for one reason share a line."""
    failed: dict[str, list[str]] = {}
    for check in report.checks:
        if not check.passed:
            failed.setdefault(check.detail, []).append(check.name)
    console.print(f"[red]{escape(report.task_id)}[/]", highlight=False, soft_wrap=True)
    for detail, names in failed.items():
        line = f"  not so: {', '.join(names)}" + (f"; {detail}" if detail else "")
        console.print(line, highlight=False, markup=False, soft_wrap=True)
