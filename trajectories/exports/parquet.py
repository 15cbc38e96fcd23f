"""Parquet: a directory with one folder of files per table, for pandas, polars, DuckDB and data loaders.

    rollouts/   one row per rollout: ids, mode, reward (null where there is no valid score), failure, timings
    samples/    one row per branch to train: ids, loss_mask, logprobs, calls, versions, steps, lists of one length
    calls/      one row per request to the proxy, with the message that came back
    steps/      one row per step of the world

Each file is one row group. `steps` in samples is the index of the first step that the token's reply caused, -1
where it caused none or was not sampled. Needs pyarrow, which the extra [export] installs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from palestra.trajectories.exports.jsontext import json_bytes
from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import Trajectory
from palestra.trajectories.sample import samples

TABLES = ("rollouts", "samples", "calls", "steps")

_TEXT, _INT, _FLOAT, _BOOL = "string", "int32", "float64", "bool"
_COLUMNS: Mapping[str, Mapping[str, str]] = {
    "rollouts": {
        **dict.fromkeys(["rollout_id", "run_id", "group_id", "task_id"], _TEXT),
        **dict.fromkeys(["sample_index", "attempt"], _INT),
        **dict.fromkeys(["mode", "harness", "harness_version", "capture_level"], _TEXT),
        "reward": _FLOAT,
        "truncated": _BOOL,
        **dict.fromkeys(["score", "failure", "timings", "findings", "task_hash"], _TEXT),
    },
    "samples": {
        **dict.fromkeys(["rollout_id", "run_id", "group_id", "task_id", "mode"], _TEXT),
        **dict.fromkeys(["sample", "samples", "leaf"], _INT),
        "reward": _FLOAT,
        "ids": "list<int32>",
        "loss_mask": "list<bool>",
        "logprobs": "list<float>",
        **dict.fromkeys(["calls", "versions", "steps"], "list<int32>"),
    },
    "calls": {
        "rollout_id": _TEXT,
        "seq": _INT,
        **dict.fromkeys(["dialect", "role", "prompt_mode", "finish_reason", "parse_status"], _TEXT),
        "delivered": _BOOL,
        **dict.fromkeys(["policy_version", "node_id", "prompt_tokens", "sampled_tokens", "retry_of"], _INT),
        "drift": _TEXT,
        **dict.fromkeys(["started_s", "duration_s"], _FLOAT),
        **dict.fromkeys(["requested", "effective", "message"], _TEXT),
    },
    "steps": {
        "rollout_id": _TEXT,
        **dict.fromkeys(["index", "call"], _INT),
        **dict.fromkeys(["tool_call_id", "action", "observation"], _TEXT),
        "reward": _FLOAT,
        **dict.fromkeys(["terminated", "truncated"], _BOOL),
        **dict.fromkeys(["anchor", "state_digest"], _TEXT),
        "valid_action": _BOOL,
        "duration_s": _FLOAT,
    },
}
"""Tables and their columns. Records within a column are JSON text."""

Row = dict[str, Any]


def parquet_rows(trajectory: Trajectory) -> Iterator[tuple[str, Row]]:
    """(table, row) of one rollout."""
    yield "rollouts", _rollout(trajectory)
    yield from (("samples", row) for row in _samples(trajectory))
    yield from (("calls", row) for row in _calls(trajectory))
    for step in trajectory.steps:
        yield "steps", {"rollout_id": trajectory.rollout.rollout_id, **asdict(step)}


def write_part(directory: Path, table: str, number: int, rows: Sequence[Row]) -> None:
    """One file of `table` in `directory`, whole or not at all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = directory / table
    folder.mkdir(parents=True, exist_ok=True)
    schema = pa.schema([(name, _type(pa, kind)) for name, kind in _COLUMNS[table].items()])
    part = folder / f"part-{number:05d}.parquet"
    temporary = part.with_suffix(".tmp")
    columns = [[_whole(row[name]) for row in rows] for name in _COLUMNS[table]]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    pq.write_table(pa.table(arrays, schema=schema), temporary, compression="zstd")
    temporary.replace(part)


def _whole(value: Any) -> Any:
    """Text without half surrogate pairs, which UTF-8 has not; other values as they are."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _type(pa: Any, kind: str) -> Any:
    inner = kind.removeprefix("list<").removesuffix(">")
    named = {"float": pa.float32()}.get(inner) or pa.type_for_alias(inner)
    return pa.list_(named) if inner != kind else named


def _rollout(trajectory: Trajectory) -> Row:
    rollout = trajectory.rollout
    row = asdict(rollout) | {"reward": rollout.reward}
    return row | {name: _json(row[name]) for name in ("score", "failure", "timings", "findings")}


def _samples(trajectory: Trajectory) -> Iterator[Row]:
    rollout, found = trajectory.rollout, samples(trajectory)
    first_step = {s.call: s.index for s in reversed(trajectory.steps) if s.call is not None}
    for number, sample in enumerate(found):
        caused = np.array([first_step.get(int(seq), -1) for seq in sample.calls], np.int32)
        yield {
            "rollout_id": rollout.rollout_id,
            "run_id": rollout.run_id,
            "group_id": rollout.group_id,
            "task_id": rollout.task_id,
            "mode": rollout.mode,
            "sample": number,
            "samples": len(found),
            "leaf": sample.leaf,
            "reward": rollout.reward,
            "ids": sample.ids,
            "loss_mask": sample.loss_mask,
            "logprobs": sample.logprobs,
            "calls": sample.calls,
            "versions": sample.versions,
            "steps": caused,
        }


def _calls(trajectory: Trajectory) -> Iterator[Row]:
    graph = TokenGraph(trajectory.nodes)
    for call in trajectory.calls:
        node = graph.nodes[call.node_id]
        row = {name: getattr(call, name, None) for name in _COLUMNS["calls"]}
        yield row | {
            "rollout_id": trajectory.rollout.rollout_id,
            "sampled_tokens": len(node.logprobs),
            "drift": _json(call.drift),
            "requested": _json(call.requested),
            "effective": _json(call.effective),
            "message": _json(node.message),
        }


def _json(value: Any) -> str | None:
    if value is None:
        return None
    plain = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    return json_bytes(plain).decode()
