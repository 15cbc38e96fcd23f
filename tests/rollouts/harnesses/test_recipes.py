"""Recipes: found by name, installed or not, pointed at a model, and what their ends mean."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

import orjson
import pytest

from palestra.rollouts.errors import NotInstalledError, RecipeError
from palestra.rollouts.harnesses.place import Ended
from palestra.rollouts.harnesses.recipes import (
    Address,
    Beside,
    HarnessRecipe,
    Installed,
    Npm,
    OnPath,
    Venv,
    find_recipe,
    recipes,
    register,
)
from palestra.rollouts.harnesses.recipes.install import perform, require

ALL = list(recipes().values())
every_recipe = pytest.mark.parametrize("recipe", ALL, ids=lambda r: r.name)
THEIRS = """
from palestra.rollouts.harnesses.recipes import HarnessRecipe, Launch, OnPath
class Theirs(HarnessRecipe):
    name = "{name}"
    dialects = ("chat",)
    install = OnPath("theirs", ("pipx", "install", "theirs"))
    shell = "bash"
    def launch(self, program, prompt, model):
        return Launch((program, prompt))
"""


def address(recipe: HarnessRecipe, dialect: Any = None) -> Address:
    return Address("http://127.0.0.1:8650", "the-key", dialect or recipe.dialects[0])


def offer(directory: Path, name: str) -> None:
    """A package with an entry point, as an installer would leave it."""
    about = directory / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[palestra.harnesses]\ntheirs = package_of_{name}:Theirs\n")
    (directory / f"package_of_{name}.py").write_text(THEIRS.format(name=name))


def test_a_package_adds_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(tmp_path, "theirs")
    monkeypatch.syspath_prepend(tmp_path)
    assert find_recipe("theirs").name == "theirs"


def test_a_name_that_is_taken_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match="there is a recipe 'codex' already"):
        register(find_recipe("codex"))
    offer(tmp_path, "codex")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RecipeError, match="entry point theirs = package_of_codex:Theirs"):
        recipes()


@every_recipe
def test_key_and_address_are_in_what_is_launched(recipe: HarnessRecipe) -> None:
    for dialect in recipe.dialects:
        launch = recipe.launch("/bin/agent", "Do it.", address(recipe, dialect))
        written = "\n".join([*launch.env.values(), *launch.files.values()])
        assert launch.argv[0] == "/bin/agent" and "Do it." in launch.argv
        assert "the-key" in written and "http://127.0.0.1:8650" in written
        assert "the-key" not in launch.argv  # other processes can read those


@every_recipe
def test_configuration_files_are_well_formed(recipe: HarnessRecipe) -> None:
    for name, text in recipe.launch("/bin/agent", "Do it.", address(recipe)).files.items():
        assert (tomllib if name.endswith(".toml") else orjson).loads(text)
        assert not name.startswith("/")


@every_recipe
def test_going_on_is_another_command_or_refused(recipe: HarnessRecipe) -> None:
    if recipe.resumes:
        assert "More." in recipe.resume("/bin/agent", "More.", address(recipe)).argv
    else:
        with pytest.raises(RecipeError, match="cannot go on"):
            recipe.resume("/bin/agent", "More.", address(recipe))


@every_recipe
def test_an_exit_code_is_a_problem(recipe: HarnessRecipe) -> None:
    assert recipe.problem(Ended(0, "{}", "")) is None
    assert "exit code 70: oh no" in str(recipe.problem(Ended(70, "", "oh no")))


ERROR = orjson.dumps({"is_error": True, "subtype": "success", "result": "API Error: 500"}).decode()
FULL = orjson.dumps({"is_error": True, "result": "Prompt is too long"}).decode()
CUT = '{"type":"turn.failed","error":{"message":"Incomplete response returned, reason: max_output_tokens"}}'
DONE = '{"type":"item.completed","item":{"type":"agent_message","text":"Done."}}\n{"type":"turn.completed"}'


@pytest.mark.parametrize(
    ("name", "ended", "problem"),
    [
        ("claude-code", Ended(0, ERROR), "API Error: 500"),
        ("claude-code", Ended(1, FULL), None),
        ("claude-code", Ended(1, "no json"), "exit code 1: no json"),
        ("codex", Ended(1, CUT), None),
        ("codex", Ended(1, "", "stream disconnected"), "exit code 1: stream disconnected"),
        ("pi", Ended(0, ""), None),
    ],
)
def test_what_an_exit_means(name: str, ended: Ended, problem: str | None) -> None:
    assert find_recipe(name).problem(ended) == problem


@pytest.mark.parametrize(
    ("name", "stdout", "answer"),
    [
        ("claude-code", '{"result": "Done."}', "Done."),
        ("codex", DONE, "Done."),
        ("codex", "", ""),
        ("mini-swe-agent", "long\n\nExit:\nDone.\n\nSaved trajectory to 'trajectory.json'\n", "Done."),
        ("pi", "Done.\n", "Done."),
    ],
)
def test_the_last_words(name: str, stdout: str, answer: str) -> None:
    assert find_recipe(name).answer(Ended(0, stdout)) == answer


def test_an_npm_package_is_found_in_its_folder(tmp_path: Path) -> None:
    install = Npm("@you/agent", "1.2.3", "no-such-agent")
    assert install.find(tmp_path) is None
    package = tmp_path / "node_modules" / "@you" / "agent"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"version": "1.2.4"}')
    program = tmp_path / "node_modules" / ".bin" / "no-such-agent"
    program.parent.mkdir()
    program.touch()
    assert install.find(tmp_path) == Installed(str(program), "1.2.4")


def test_a_program_on_the_path_serves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "no-such-agent"
    program.write_text("#!/bin/sh\necho 9.9 of it\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found = Installed(str(program), "9.9 of it")
    installs = (
        Npm("@you/agent", "1.0", "no-such-agent"),
        Venv(("agent==1.0",), "no-such-agent"),
        OnPath("no-such-agent", ()),
    )
    assert [install.find(tmp_path / "nothing") for install in installs] == [found] * 3


def test_an_installation_that_fails_says_which_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PALESTRA_HARNESSES", str(tmp_path))
    with pytest.raises(NotInstalledError, match="x could not be installed: false: exit 1"):
        perform("x", OnPath("no-such-agent", ("false",)))
    with pytest.raises(NotInstalledError, match="no-such-program: No such file"):
        perform("x", OnPath("no-such-agent", ("no-such-program",)))


def test_what_is_beside_palestra_is_found() -> None:
    assert require("x", Beside("pytest")) == Installed(sys.executable, pytest.__version__)
    with pytest.raises(NotInstalledError, match="-m pip install no-such-package"):
        require("x", Beside("no-such-package"))
