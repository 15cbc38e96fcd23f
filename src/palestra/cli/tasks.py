"""`palestra tasks`: what there is to solve."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import track
from rich.table import Table

app = typer.Typer(help="List, show and validate task sets.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="a registered name, a .jsonl file, or package.module:function")]


@app.command("list")
def list_() -> None:
    """List the registered task sets.

    Example: palestra tasks list
    """
    from palestra.tasks.registry import registered

    table = Table("name", "what it is", box=None)
    for name, description in registered():
        table.add_row(name, description)
    Console().print(table)


@app.command()
def show(name: Name, task_id: Annotated[str | None, typer.Argument(help="one task, in full")] = None) -> None:
    """Show a task set by split and kind, or one task in full.

    Example: palestra tasks show sql-tiny sql-tiny/test/0003/count
    """
    from palestra.tasks.registry import find_task, load_tasks

    console = Console()
    if task_id is not None:
        console.print_json(find_task(name, task_id).model_dump_json())
        return
    tasks = load_tasks(name)
    counts = Counter((t.split, t.data.get("kind", t.family)) for t in tasks)
    table = Table("split", "kind", "tasks", title=f"{name}: {len(tasks)} tasks", box=None)
    for (split, kind), count in counts.items():
        table.add_row(split, kind, str(count))
    console.print(table)
    if tasks:
        console.print(f"\nfirst: {tasks[0].id}\n  {escape(tasks[0].instruction)}", highlight=False)


@app.command()
def validate(
    name: Name,
    limit: Annotated[int | None, typer.Option(help="check only the first tasks of each split")] = None,
) -> None:
    """Check that gold scores 1, doing nothing scores 0, known cheats score 0 and repeats agree.

    Example: palestra tasks validate sql-gym --limit 50
    """
    from palestra.envs.validate import validate_task
    from palestra.tasks.registry import load_tasks
    from palestra.tasks.task import SPLITS

    console = Console()
    tasks = load_tasks(name)
    chosen = [t for split in SPLITS for t in list(tasks.split(split))[:limit]]
    bad = 0
    for task in track(chosen, description="validating", console=console, disable=not console.is_terminal):
        report = validate_task(task)
        if not report.passed:
            bad += 1
            problems = "; ".join(f"{c.name}: {c.detail}" for c in report.checks if not c.passed)
            console.print(f"[red]{escape(task.id)}[/]  {escape(problems)}", highlight=False, soft_wrap=True)
    console.print(f"{len(chosen) - bad} of {len(chosen)} tasks are valid")
    if bad:
        raise typer.Exit(1)
