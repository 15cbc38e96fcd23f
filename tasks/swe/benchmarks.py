"""Smaller benchmarks in their own layouts: QuixBugs, BugsInPy, and Harbor or Terminal-Bench task folders.

load_tasks("quixbugs?path=QuixBugs")
load_tasks("bugsinpy?path=BugsInPy/projects&repo_root=clones")
load_tasks("harbor?path=tasks")
"""

from __future__ import annotations

import functools
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from palestra.tasks.errors import TaskFileError
from palestra.tasks.files import read_text
from palestra.tasks.swe.repair import BUDGET, Repair, Source, Suite, make_task
from palestra.tasks.swe.sources import git_tree
from palestra.tasks.swe.tiny import text_diff
from palestra.tasks.swe.tree import File, Tree, diff, from_directory
from palestra.tasks.task import Split, Task, TaskSet

_SHARED = (
    "conftest.py",
    "python_testcases/load_testdata.py",
    "python_testcases/node.py",
    "python_programs/node.py",
)
_ASSIGNMENT = re.compile(r'^(\w+)="?([^"\n]*)"?\s*$', re.MULTILINE)


def load_quixbugs(path: str, split: Split = "test") -> TaskSet:
    """The Python programs of QuixBugs (Lin et al. 2017), each with its test. Raises TaskFileError.

    The corrected programs are not part of any task's tree. Bugs that run for ever make a limit per test necessary.
    """
    root = Path(path)
    programs = sorted(p.stem.removeprefix("test_") for p in (root / "python_testcases").glob("test_*.py"))
    if not programs:
        raise TaskFileError(f"there is no python_testcases/test_*.py in {root}: is it a clone of QuixBugs?")
    return TaskSet("quixbugs", [_quixbug(root, program, split) for program in programs])


@functools.lru_cache(maxsize=4)
def quixbugs_tree(path: str, program: str) -> Tree:
    """One buggy program with its test and data. Raises TaskFileError."""
    root = Path(path)
    wanted = (
        f"python_programs/{program}.py",
        f"python_testcases/test_{program}.py",
        f"json_testcases/{program}.json",
    )
    files = {p: File(_text(root / p).encode()) for p in (*wanted, *_SHARED) if (root / p).is_file()}
    if wanted[0] not in files:
        raise TaskFileError(f"{root} has no {wanted[0]}")
    return Tree(files)


def load_bugsinpy(path: str, repo_root: str, split: Split = "test", existing_only: bool = False) -> TaskSet:
    """BugsInPy (Widyasari et al. 2020): projects/<project>/bugs/<n>, with clones of the projects below `repo_root`.

    Many bugs need the Python of their time. Raises TaskFileError where a clone is missing, unless `existing_only`.
    """
    tasks: list[Task] = []
    for info in sorted(Path(path).glob("*/bugs/*/bug.info")):
        clone = Path(repo_root) / info.parents[2].name
        if clone.is_dir():
            tasks.append(_bugsinpy(info, clone, split))
        elif not existing_only:
            raise TaskFileError(f"{info}: no clone at {clone}; existing_only=true leaves such bugs out")
    return TaskSet("bugsinpy", tasks)


def load_harbor(path: str, split: Split = "test", image: str = "") -> TaskSet:
    """Task folders of Harbor (task.toml, instruction.md, tests/test.sh), below `path` or `path` itself.

    `image` replaces the image that a task's environment/Dockerfile starts from. Raises TaskFileError.
    """
    root = Path(path)
    folders = [f.parent for f in sorted({*root.glob("task.toml"), *root.glob("*/task.toml")})]
    if not folders:
        raise TaskFileError(f"there is no task.toml in {root} or in a folder of it")
    return TaskSet("harbor", [_harbor(folder, split, image) for folder in folders])


def _quixbug(root: Path, program: str, split: Split) -> Task:
    source = Source(
        builder="palestra.tasks.swe.benchmarks:quixbugs_tree", args={"path": str(root), "program": program}
    )
    code = f"python_programs/{program}.py"
    repair = Repair(
        source=source,
        suite=Suite(arguments=(f"python_testcases/test_{program}.py",), timeout_s=120, test_timeout_s=5),
        protected=("json_testcases", "python_testcases"),
        patch=text_diff(code, _text(root / code), _text(root / "correct_python_programs" / f"{program}.py")),
        kind="quixbugs",
        repo="jkoppel/QuixBugs",
    )
    statement = (
        f"python_programs/{program}.py has a bug, most likely in one line. Repair it so that "
        f"python3 -m pytest python_testcases/test_{program}.py passes, and submit."
    )
    return make_task(f"quixbugs/{program}", split, statement, repair)


def _text(path: Path) -> str:
    """A text file, ending in a line end."""
    text = read_text(path)
    return text if text.endswith("\n") else text + "\n"


def _bugsinpy(info: Path, clone: Path, split: Split) -> Task:
    fields = dict(_ASSIGNMENT.findall(read_text(info)))
    for name in ("buggy_commit_id", "fixed_commit_id", "test_file"):
        if not fields.get(name):
            raise TaskFileError(f'{info}: no line {name}="..."; there is {", ".join(fields) or "nothing"}')
    files = tuple(f.strip() for f in fields["test_file"].split(";") if f.strip())
    before, after = (git_tree(str(clone), fields[f"{n}_commit_id"]) for n in ("buggy", "fixed"))
    patch = read_text(info.with_name("bug_patch.txt"))
    args = {"repository": str(clone), "commit": fields["buggy_commit_id"]}
    repair = Repair(
        source=Source(builder="palestra.tasks.swe.sources:git_tree", args=args),
        suite=Suite(arguments=files, timeout_s=900),
        protected=files,
        fail_to_pass=tuple(_bugsinpy_ids(read_text(info.with_name("run_test.sh")))),
        patch=patch,
        test_patch=diff(before, before.replaced({f: after[f] for f in files if f in after})),
        kind="bugsinpy",
        repo=info.parents[2].name,
        base_commit=fields["buggy_commit_id"],
        extra={"python_version": fields.get("python_version", "")},
    )
    name = f"{info.parents[2].name}/{info.parent.name}"
    statement = (
        f"{info.parents[2].name} has a bug. These tests, which you may not have, fail: "
        f"{', '.join(repair.fail_to_pass)}. Repair the code, and submit."
    )
    return make_task(f"bugsinpy/{name}", split, statement, repair)


def _bugsinpy_ids(script: str) -> Iterator[str]:
    """The tests that a run_test.sh names, as pytest ids; unittest's dotted names are turned into them."""
    for line in script.splitlines():
        for word in shlex.split(line, comments=True):
            if ".py" in word:
                yield word
            elif line.startswith("python") and word.count(".") >= 2 and "/" not in word:
                *module, case, test = word.split(".")
                yield f"{'/'.join(module)}.py::{case}::{test}"


def _harbor(folder: Path, split: Split, image: str) -> Task:
    try:
        config = tomllib.loads(read_text(folder / "task.toml"))
    except tomllib.TOMLDecodeError as error:
        raise TaskFileError(f"{folder / 'task.toml'}: {error}") from error
    script = folder / "tests" / "test.sh"
    if not script.is_file():
        raise TaskFileError(f"{folder} has no tests/test.sh")
    base, workdir, setup = _dockerfile(folder / "environment" / "Dockerfile")
    verifier, agent = config.get("verifier", {}), config.get("agent", {})
    repair = Repair(
        image=image or base,
        workdir=workdir,
        setup=setup,
        setup_user="root",
        suite=Suite(runner="script", arguments=(), timeout_s=float(verifier.get("timeout_sec", 600))),
        kind="harbor",
        extra={"folder": str(folder.resolve()), "metadata": config.get("metadata", {})},
    )
    budget = BUDGET.model_copy(update={"wall_s": float(agent.get("timeout_sec", BUDGET.wall_s))})
    return make_task(
        f"harbor/{folder.name}", split, read_text(folder / "instruction.md").strip(), repair, budget
    )


def _dockerfile(path: Path) -> tuple[str, str, str]:
    """(image, working directory, RUN lines as one script) of a Dockerfile of FROM, WORKDIR, RUN and ENV."""
    image, workdir, runs = "swe", "/app", ["set -e"]
    text = read_text(path).replace("\\\n", " ") if path.is_file() else ""
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word.upper() == "FROM":
            image = rest.split()[0]
        elif word.upper() == "WORKDIR":
            workdir = rest.strip()
            runs.append(f"mkdir -p {workdir} && cd {workdir}")
        elif word.upper() == "RUN":
            runs.append(rest.strip())
        elif word.upper() == "ENV":
            runs.append(f"export {rest.strip()}")
        elif word.upper() in ("COPY", "ADD", "ENTRYPOINT"):
            raise TaskFileError(
                f"{path}: {word} is not understood; build the image and name it with image=..."
            )
    return image, workdir, "\n".join(runs) if len(runs) > 1 else ""


def harbor_tests(folder: str) -> Tree:
    """The files of a Harbor task's tests."""
    return from_directory(Path(folder) / "tests")


def harbor_solution(extra: dict[str, Any]) -> str | None:
    """The script that solves a Harbor task, or None."""
    script = Path(extra["folder"]) / "solution" / "solve.sh"
    return read_text(script) if script.is_file() else None
