"""Diffs as predictions for the official grader of SWE-bench.

    python -m swebench.harness.run_evaluation --predictions_path predictions.jsonl --dataset_name ... --run_id ...

One JSON object per line: instance_id, model_name_or_path, model_patch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import orjson

from palestra.tasks.swe.repair import repair_of
from palestra.tasks.task import Task


def instance_id(task: Task) -> str:
    """How SWE-bench calls a task: the id that it came with, else ours with "/" as "__"."""
    return str(repair_of(task).extra.get("instance_id") or task.id.replace("/", "__"))


def official_ids(tests: Iterable[str]) -> list[str]:
    """Test ids as the parsers of SWE-bench read them from a log: up to the first blank, each once, in order."""
    return list(dict.fromkeys(test.split()[0] for test in tests))


def instance(task: Task) -> dict[str, object]:
    """A repair task as a record of a SWE-bench data set; FAIL_TO_PASS and PASS_TO_PASS are JSON text, as there."""
    repair = repair_of(task)
    return {
        "instance_id": instance_id(task),
        "repo": repair.repo,
        "base_commit": repair.base_commit,
        "problem_statement": task.instruction,
        "hints_text": "",
        "patch": repair.patch,
        "test_patch": repair.test_patch,
        "version": str(repair.extra.get("version", "")),
        "FAIL_TO_PASS": orjson.dumps(official_ids(repair.fail_to_pass)).decode(),
        "PASS_TO_PASS": orjson.dumps(official_ids(repair.pass_to_pass)).decode(),
    }


def write_predictions(path: str | Path, patches: Mapping[str, str | bytes], model: str) -> None:
    """Write {instance id: git diff} as the JSONL that the official grader reads.

    A diff with text that is not UTF-8 cannot be said in JSON; raises ValueError naming the instance.
    """
    lines = [_line(name, patch, model) for name, patch in patches.items()]
    Path(path).write_bytes(b"".join(lines))


def write_instances(path: str | Path, tasks: Iterable[Task]) -> None:
    """Write tasks as a SWE-bench data set in JSONL."""
    Path(path).write_bytes(b"".join(orjson.dumps(instance(task)) + b"\n" for task in tasks))


def _line(name: str, patch: str | bytes, model: str) -> bytes:
    try:
        text = patch.decode() if isinstance(patch, bytes) else patch
        return orjson.dumps({"instance_id": name, "model_name_or_path": model, "model_patch": text}) + b"\n"
    except (UnicodeDecodeError, orjson.JSONEncodeError) as error:
        raise ValueError(f"the diff of {name!r} is not UTF-8 text: {error}") from error
