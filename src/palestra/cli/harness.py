"""`palestra harness`: command-line agents that palestra knows: what is here, whether it is recorded faithfully,
and one session with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from palestra.cli.harness_run import Dialect, Isolation, Name, run_

if TYPE_CHECKING:
    from palestra.rollouts.harnesses.check import Verdict

app = typer.Typer(
    name="harness",
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Command-line agents: list, install, check and run them through the recording proxy.",
)
app.command("run")(run_)


@app.command("list")
def list_() -> None:
    """List the harnesses that palestra can start, and which of them are on this machine.

    \b
    Example:
      palestra harness list
    """
    from palestra.rollouts.harnesses.recipes import recipes
    from palestra.rollouts.harnesses.recipes.install import folder_of

    table = Table("harness", "here", "dialects", "goes on", box=None, pad_edge=False)
    for name, recipe in recipes().items():
        found = recipe.install.find(folder_of(name))
        here = found.version if found is not None else "no"
        table.add_row(name, here, ", ".join(recipe.dialects), "yes" if recipe.resumes else "no")
    console = Console()
    console.print(table)
    console.print("palestra harness install NAME puts one there; palestra harness check NAME tries it")


@app.command()
def install(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="harnesses to install")],
) -> None:
    """Install harnesses, each in a folder of its own; those that are there are left as they are.

    The folders are in ~/.cache/palestra/harnesses, or where PALESTRA_HARNESSES says.

    \b
    Example:
      palestra harness install codex pi
    """
    from palestra.rollouts.harnesses.recipes import find_recipe
    from palestra.rollouts.harnesses.recipes.install import perform

    for name in names:
        found = perform(name, find_recipe(name).install)
        print(f"{name} {found.version} at {found.program}")


@app.command()
def check(name: Name, dialect: Dialect = None, isolation: Isolation = True) -> None:
    """Drive the real harness by a scripted model and say whether all of it was recorded.

    The model makes a shell call, two at once, writes a file and ends; where the harness can go on it is prompted
    again. Exit status 1 if anything is not as it should be.

    \b
    Examples:
      palestra harness check codex
      palestra harness check pi --dialect anthropic
    """
    from palestra.rollouts.harnesses.check import check as run_check
    from palestra.rollouts.harnesses.recipes import find_recipe
    from palestra.rollouts.loop import run

    verdict = run(run_check(find_recipe(name), dialect=dialect, isolated=isolation))
    _print(verdict)
    if not verdict.good:
        raise typer.Exit(1)


def _print(verdict: Verdict) -> None:
    found, console = verdict.audit, Console()
    table = Table(box=None, show_header=False, pad_edge=False)
    side = {role: n for role, n in found.roles.items() if role != "agent"}
    rows = {
        "calls": f"{found.calls}: {found.roles.get('agent', 0)} of the agent"
        + "".join(f", {n} {role}" for role, n in side.items()),
        "tokens": f"{found.sampled:,} sampled, {found.recorded:,} recorded, each once",
        "paths": f"{found.mismatches} differ from what the engine was given and gave",
        "main thread": f"{found.branches} branch" + ("es" if found.branches != 1 else ""),
        "answer": verdict.answer[-200:] or "none",
        **{f"finding {i}": said for i, said in enumerate(verdict.findings, 1)},
        **{f"fault {i}": said for i, said in enumerate(verdict.faults, 1)},
    }
    for label, value in rows.items():
        table.add_row(label, value)
    console.print(f"{verdict.harness} {verdict.version}, {verdict.dialect}", highlight=False)
    console.print(table, markup=False)
    console.print("faithful" if verdict.good else "not as it should be")
