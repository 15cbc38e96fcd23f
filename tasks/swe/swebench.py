"""SWE-bench and its relatives: Verified, Lite, Multi-SWE-bench, SWE-bench Pro.

    load_tasks("swebench?path=verified.jsonl")                          trees come from the official container images
    load_tasks("swebench?path=verified.parquet&repo_root=clones")       trees come from clones: clones/django
    load_tasks("swebench-pro?path=SWE-bench_Pro-os/run_scripts&repo_root=clones")
    load_tasks("multi-swe-bench?path=python_verified.jsonl")

Where an instance names its tests by pytest ids they run here; others (Django's own runner, other languages) are loaded
too and graded by the benchmark's own grader from the predictions (`palestra.rewards.swe.predictions`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from palestra.tasks.errors import TaskFileError
from palestra.tasks.files import read_records, read_text
from palestra.tasks.swe.repair import Repair, Source, Suite, make_task
from palestra.tasks.swe.sources import git_tree
from palestra.tasks.swe.tree import diff, git, paths_of
from palestra.tasks.task import Split, Task, TaskSet

IMAGE = "swebench/sweb.eval.x86_64.{name}:latest"
IMAGE_PYTHON = "/opt/miniconda3/envs/testbed/bin/python"
TESTBED = "/testbed"
_PYTEST_ID = re.compile(r"[\w./-]+\.py(::|$)")
_PRO_FIELDS = ("Instance ID", "Repository", "Base Commit", "Test Files", "FAIL_TO_PASS", "PASS_TO_PASS")
_PRO_FIX = re.compile(r"-([0-9a-f]{40})(?:-v[0-9a-z]+)?$")


def load_swebench(path: str, repo_root: str | None = None, split: Split = "test") -> TaskSet:
    """Instances of SWE-bench, Lite or Verified (.jsonl, .json or .parquet). Raises TaskFileError."""
    tasks = [_swebench(body, where, _clones(repo_root), split) for where, body in _records(Path(path))]
    return TaskSet("swebench", tasks)


def load_multi_swebench(path: str, repo_root: str | None = None, split: Split = "test") -> TaskSet:
    """Instances of Multi-SWE-bench (org, repo, number, base, fix_patch, test_patch ...). Raises TaskFileError."""
    tasks = [_multi(body, where, _clones(repo_root), split) for where, body in _records(Path(path))]
    return TaskSet("multi-swe-bench", tasks)


def load_pro(path: str, repo_root: str, split: Split = "test", existing_only: bool = False) -> TaskSet:
    """SWE-bench Pro: run_scripts/<instance>/instance_info.txt, with clones of the repositories below `repo_root`.

    The folder has neither solutions nor statements: both come from the commit that the instance id names. Raises
    TaskFileError where a clone or a commit is missing, unless `existing_only`.
    """
    tasks: list[Task] = []
    for file in sorted(Path(path).glob("*/instance_info.txt")):
        fields = _pro_fields(file)
        clone = _clone(Path(repo_root), fields["Repository"])
        if clone is None and not existing_only:
            raise TaskFileError(
                f"{file}: no clone of {fields['Repository']} in {repo_root}; existing_only=true skips"
            )
        if clone is not None:
            tasks.append(_pro(fields, clone, file, split))
    return TaskSet("swebench-pro", tasks)


def ids(value: Any, where: str) -> tuple[str, ...]:
    """A list of test ids, which SWE-bench writes as JSON text. Raises TaskFileError."""
    try:
        found = orjson.loads(value) if isinstance(value, str) else value
    except orjson.JSONDecodeError as error:
        raise TaskFileError(f"{where}: not a JSON list of test ids: {value[:80]!r}") from error
    if isinstance(found, Mapping):
        found = list(found)
    if not isinstance(found, list) or not all(isinstance(t, str) for t in found):
        raise TaskFileError(f"{where}: expected a list of test ids, found {str(found)[:80]!r}")
    return tuple(found)


def suite_for(tests: Iterable[str], files: Iterable[str], python: str, timeout_s: float = 1800.0) -> Suite:
    """pytest on the files of the tests, if that is what their ids look like."""
    named = [t for t in tests]
    if not named or not all(_PYTEST_ID.match(t) for t in named):
        return Suite(runner="official", arguments=(), python=python, timeout_s=timeout_s)
    arguments = sorted({t.partition("::")[0] for t in named} | {f for f in files if f.endswith(".py")})
    return Suite(arguments=tuple(arguments), python=python, timeout_s=timeout_s)


def _swebench(body: Mapping[str, Any], where: str, clones: Path | None, split: Split) -> Task:
    for name in ("instance_id", "repo", "base_commit", "patch", "test_patch", "problem_statement"):
        if not isinstance(body.get(name), str):
            raise TaskFileError(
                f"{where}: field {name!r} must be text; there is {', '.join(body) or 'nothing'}"
            )
    fail, keep = (ids(body.get(n, []), f"{where}, {n}") for n in ("FAIL_TO_PASS", "PASS_TO_PASS"))
    clone = _clone(clones, body["repo"]) if clones is not None else None
    shared = _place(clone, body["base_commit"], body["instance_id"])
    python = IMAGE_PYTHON if clone is None else "python3"
    kept = ("instance_id", "version", "hints_text", "created_at", "environment_setup_commit", "difficulty")
    repair = Repair(
        **shared,
        suite=suite_for((*fail, *keep), paths_of(body["test_patch"]), python),
        fail_to_pass=fail,
        pass_to_pass=keep,
        patch=body["patch"],
        test_patch=body["test_patch"],
        protected=tuple(paths_of(body["test_patch"])),
        kind="swebench",
        repo=body["repo"],
        base_commit=body["base_commit"],
        extra={name: body[name] for name in kept if body.get(name)},
    )
    return make_task(f"swebench/{body['instance_id']}", split, body["problem_statement"], repair)


def _multi(body: Mapping[str, Any], where: str, clones: Path | None, split: Split) -> Task:
    try:
        repo, number = f"{body['org']}/{body['repo']}", body["number"]
        base, fix, tests = body["base"]["sha"], body["fix_patch"], body["test_patch"]
    except (KeyError, TypeError) as error:
        raise TaskFileError(f"{where}: field {error} is missing; there is {', '.join(body)}") from error
    issues = [
        f"{i.get('title') or ''}\n\n{i.get('body') or ''}".strip() for i in body.get("resolved_issues") or ()
    ]
    name = str(body.get("instance_id") or f"{body['org']}__{body['repo']}-{number}")
    fail = tuple(t for n in ("f2p_tests", "s2p_tests", "n2p_tests") for t in ids(body.get(n) or {}, where))
    keep = ids(body.get("p2p_tests") or {}, where)
    clone = _clone(clones, repo) if clones is not None else None
    place = _place(clone, base, name)
    if clone is None:
        place["image"] = f"mswebench/{body['org']}_m_{body['repo']}:pr-{number}".lower()
        place["workdir"] = f"/home/{body['repo']}"
    repair = Repair(
        **place,
        suite=suite_for((*fail, *keep), paths_of(tests), "python3"),
        fail_to_pass=fail,
        pass_to_pass=keep,
        patch=fix,
        test_patch=tests,
        protected=tuple(paths_of(tests)),
        kind="multi-swe-bench",
        repo=repo,
        base_commit=base,
        extra={"instance_id": name, "number": number},
    )
    statement = "\n\n".join(issues) or f"{body.get('title') or ''}\n\n{body.get('body') or ''}".strip()
    return make_task(f"multi-swe-bench/{name}", split, statement, repair)


def _pro_fields(file: Path) -> dict[str, str]:
    """The "Name: value" lines of an instance_info.txt."""
    pairs = (line.partition(": ") for line in read_text(file).splitlines())
    fields = {name: value for name, sign, value in pairs if sign}
    if missing := [name for name in _PRO_FIELDS if name not in fields]:
        raise TaskFileError(f"{file}: no line {missing[0]!r}; there is {', '.join(fields) or 'nothing'}")
    return fields


def _pro(fields: Mapping[str, str], clone: Path, file: Path, split: Split) -> Task:
    name, base = fields["Instance ID"], fields["Base Commit"]
    fail, keep = (ids(fields[n], f"{file}, {n}") for n in ("FAIL_TO_PASS", "PASS_TO_PASS"))
    match = _PRO_FIX.search(name)
    if match is None:
        raise TaskFileError(f"{file}: the instance id names no commit: {name}")
    # Some Test Files are ids that end at the first blank; the files before "::" are whole.
    files = sorted({t.partition("::")[0] for t in ids(fields["Test Files"], str(file))})
    before, after = git_tree(str(clone), base), git_tree(str(clone), match.group(1))
    tests = {p for p in {*before, *after} if p in files}
    repair = Repair(
        **_place(clone, base, name),
        suite=suite_for((*fail, *keep), files, "python3", timeout_s=3600.0),
        fail_to_pass=fail,
        pass_to_pass=keep,
        patch=diff(
            before, after.replaced({p: before[p] for p in tests if p in before}).without(tests - {*before})
        ),
        test_patch=diff(before, before.replaced({p: after[p] for p in tests if p in after})),
        protected=tuple(files),
        kind="swebench-pro",
        repo=fields["Repository"],
        base_commit=base,
        extra={"instance_id": name},
    )
    return make_task(f"swebench-pro/{name}", split, _message(clone, match.group(1)), repair)


def _message(clone: Path, commit: str) -> str:
    return git(clone, "show", "-s", "--format=%B", commit).decode("utf-8", "replace").strip()


def _place(clone: Path | None, base: str, instance: str) -> dict[str, Any]:
    """Where the tree of an instance comes from: a clone, or the official image."""
    if clone is None:
        image = IMAGE.format(name=instance.lower().replace("__", "_1776_"))
        return {"image": image, "workdir": TESTBED}
    args = {"repository": str(clone), "commit": base}
    return {"source": Source(builder="palestra.tasks.swe.sources:git_tree", args=args)}


def _clones(repo_root: str | None) -> Path | None:
    return Path(repo_root) if repo_root is not None else None


def _clone(root: Path, repo: str) -> Path | None:
    """The clone of owner/name: root/name, root/owner__name or root/owner/name, bare or not."""
    owner, _, name = repo.partition("/")
    places = (root / f"{p}{suffix}" for p in (name, f"{owner}__{name}", repo) for suffix in ("", ".git"))
    return next((p for p in places if p.is_dir()), None)


def _records(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(where, record) of each instance of a file."""
    records = _parquet(path) if path.suffix == ".parquet" else read_records(path)
    for where, body in records:
        if not isinstance(body, Mapping):
            raise TaskFileError(f"{path}, {where}: an instance is an object, this is a {type(body).__name__}")
        yield f"{path}, {where}", body


def _parquet(path: Path) -> list[tuple[str, Any]]:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise TaskFileError(f"pyarrow is needed to read {path}: pip install pyarrow, or use JSONL") from error
    try:
        rows = pyarrow.parquet.read_table(path).to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise TaskFileError(f"cannot read {path}: {error}") from error
    return [(f"row {n}", row) for n, row in enumerate(rows)]
