"""`palestra tasks make`: repair tasks from commits, releases and planted bugs, validated by running their tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from palestra.cli.errors import UsageError

if TYPE_CHECKING:
    from palestra.envs.machines import Workshop
    from palestra.tasks.swe.repair import Suite
    from palestra.tasks.task import Task

app = typer.Typer(help="Make repair tasks.", no_args_is_help=True, rich_markup_mode=None)

Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="task file (.jsonl) to add to")]
Backend = Annotated[str, typer.Option(metavar="NAME", help="where tests run: namespace or docker")]
Repeats = Annotated[int, typer.Option(min=1, metavar="N", help="runs of each tree; flaky tests are left out")]
Tests = Annotated[
    list[str] | None, typer.Option("--tests", metavar="PATH", help="file or folder of tests; may be repeated")
]


@app.command()
def commit(
    repository: Annotated[Path, typer.Argument(metavar="REPOSITORY", help="folder of a git repository")],
    commits: Annotated[list[str], typer.Argument(metavar="COMMIT...", help="commits that fix something")],
    out: Out = Path("tasks.jsonl"),
    tests: Tests = None,
    repeats: Repeats = 3,
    backend: Backend = "namespace",
) -> None:
    """Turn commits of a git repository into tasks.

    \b
    Example:
      palestra tasks make commit ~/src/parser 3f2a91c 8b00d17 --out parser.jsonl
    """
    from palestra.tasks.swe.make import from_commit

    def one(workshop: Workshop, name: str) -> list[Task]:
        from palestra.envs.swe_make import task_of

        candidate = from_commit(repository.resolve(), name, _suite(tests))
        task_id = f"{candidate.repair.repo}/{candidate.repair.extra['commit'][:12]}"
        return [task_of(candidate, task_id, workshop, repeats=repeats)]

    _make(commits, one, out, backend)


@app.command()
def release(
    package: Annotated[str, typer.Argument(metavar="PACKAGE", help="name on PyPI")],
    versions: Annotated[
        list[str], typer.Argument(metavar="VERSION...", help="two or more, the oldest first")
    ],
    out: Out = Path("tasks.jsonl"),
    tests: Tests = None,
    repeats: Repeats = 3,
    backend: Backend = "namespace",
) -> None:
    """Turn the change from each version of a package to the next into a task.

    \b
    Example:
      palestra tasks make release sqlparse 0.4.3 0.4.4 0.5.0 --out sqlparse.jsonl
    """
    from palestra.tasks.swe.make import from_releases

    if len(versions) < 2:
        raise UsageError("give at least two versions, the oldest first")
    older = dict(zip(versions[1:], versions, strict=False))

    def one(workshop: Workshop, version: str) -> list[Task]:
        from palestra.envs.swe_make import task_of

        candidate = from_releases(package, older[version], version, _suite(tests))
        return [task_of(candidate, f"{package}/{version}", workshop, repeats=repeats)]

    _make(versions[1:], one, out, backend)


@app.command()
def bugs(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="source of a package whose tests pass")],
    count: Annotated[int, typer.Option(min=1, metavar="N", help="how many bugs")] = 20,
    out: Out = Path("tasks.jsonl"),
    tests: Tests = None,
    backend: Backend = "namespace",
) -> None:
    """Plant bugs in a clean package and keep those that its tests catch.

    \b
    Example:
      palestra tasks make bugs ~/src/parser --count 50 --out bugs.jsonl
    """
    from palestra.tasks.swe.repair import Source

    place = folder.resolve()
    source = Source(builder="palestra.tasks.swe.sources:directory_tree", args={"path": str(place)})

    def all_of(workshop: Workshop, name: str) -> list[Task]:
        from palestra.envs.swe_make import bug_tasks

        return list(bug_tasks(source, name, workshop, count, _suite(tests)))

    _make([place.name], all_of, out, backend)


def _make(names: Sequence[str], one: Callable[[Workshop, str], list[Task]], out: Path, backend: str) -> None:
    """Make the tasks of each name and add them to the file; exit status 1 when a name gives none."""
    from palestra.envs.machines import workshop
    from palestra.rewards.swe.derive import RejectedError
    from palestra.tasks.files import read_tasks, write_tasks

    console = Console()
    shop = workshop(backend)
    kept = {task.id: task for task in read_tasks(out)} if out.exists() else {}
    refused = 0
    for name in names:
        try:
            made = one(shop, name)
        except RejectedError as error:
            refused += 1
            console.print(f"{name}: no task: {error}", highlight=False, markup=False, soft_wrap=True)
            continue
        kept |= {task.id: task for task in made}
        write_tasks(out, kept.values())
        for task in made:
            fail, keep = (len(task.data.get(key, ())) for key in ("fail_to_pass", "pass_to_pass"))
            said = f"{task.id}: {fail} tests to repair, {keep} to keep"
            console.print(said, highlight=False, markup=False, soft_wrap=True)
    console.print(f"{len(kept)} tasks in {out}", highlight=False, markup=False, soft_wrap=True)
    if refused:
        raise typer.Exit(1)


def _suite(tests: list[str] | None) -> Suite | None:
    from palestra.tasks.swe.repair import Suite

    return Suite(arguments=tuple(tests)) if tests else None
