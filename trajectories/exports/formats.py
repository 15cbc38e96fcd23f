"""The forms in which rollouts are exported, and which rollouts each of them takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from palestra.trajectories.errors import ExportError
from palestra.trajectories.exports.atif import atif_rows
from palestra.trajectories.exports.parquet import parquet_rows
from palestra.trajectories.exports.plain import plain_rows
from palestra.trajectories.exports.sinks import EVERY_ROLLOUTS, Documents, JsonLines, Parquet, Sink, State
from palestra.trajectories.exports.slime import slime_rows
from palestra.trajectories.exports.trl import grpo_rows, sft_rows
from palestra.trajectories.exports.verl import verl_rows
from palestra.trajectories.model import Mode, Rollout, Trajectory
from palestra.trajectories.store import Store


@dataclass(frozen=True, slots=True)
class Format:
    """One form: how a rollout becomes rows, where they go, and what it must have."""

    rows: Callable[[Trajectory], Iterator[Any]]
    sink: Callable[[Path, Mapping[str, Any]], Sink]
    about: str
    scored: bool = False
    """Only rollouts with a valid score: for training."""
    tokens: bool = False
    """Only rollouts of which tokens are known."""


FORMATS: Mapping[str, Format] = {
    "atif": Format(atif_rows, Documents, "a directory of ATIF 1.8 documents, one per rollout"),
    "slime": Format(slime_rows, JsonLines, "JSON Lines of slime's Sample", scored=True, tokens=True),
    "verl": Format(verl_rows, JsonLines, "JSON Lines of verl's AgentLoopOutput", scored=True, tokens=True),
    "trl": Format(grpo_rows, JsonLines, "JSON Lines for TRL's GRPO rollout_func", scored=True, tokens=True),
    "trl-sft": Format(sft_rows, JsonLines, "JSON Lines of conversations for TRL's SFTTrainer", scored=True),
    "parquet": Format(parquet_rows, Parquet, "a directory of tables: rollouts, samples, calls, steps"),
    "jsonl": Format(plain_rows, JsonLines, "JSON Lines, one rollout each, everything that is on record"),
}


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rollouts to export; None does not choose."""

    run_id: str | None = None
    mode: Mode | None = None
    min_reward: float | None = None
    unscored: bool = False
    """Take rollouts without a valid score where the form could leave them out: demonstrations, for example."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export came to."""

    rollouts: int
    rows: int
    left_out: Mapping[str, int]
    """Rollouts that were not taken, by reason."""


def export(
    store: Store,
    name: str,
    out: Path,
    selection: Selection | None = None,
    on_rollout: Callable[[], object] = lambda: None,
) -> Exported:
    """Write the rollouts of `store` to `out` in form `name`, one in memory at a time.

    Interrupted, the same call goes on. Run again on a finished directory (atif, parquet), it adds what was
    committed since. `on_rollout` is called after each rollout of the store. Raises ExportError and what the
    store raises.
    """
    form, chosen = find_format(name), selection or Selection()
    sink = form.sink(out, {"format": name, **asdict(chosen)})
    state = sink.state
    try:
        for rollout_id in store.ids(**_filters(chosen))[state.done :]:
            _take(store, form, chosen, sink, rollout_id)
            state.done += 1
            if state.done % EVERY_ROLLOUTS == 0 or getattr(sink, "full", False):
                sink.checkpoint()
            on_rollout()
        sink.finish()
    finally:
        sink.close()
    return Exported(state.rollouts, state.rows, dict(state.left_out))


def find_format(name: str) -> Format:
    """The form of this name. Raises ExportError."""
    if name not in FORMATS:
        raise ExportError(f"there is no format {name!r}: choose one of {', '.join(FORMATS)}")
    return FORMATS[name]


def left_out(form: Format, chosen: Selection, rollout: Rollout) -> str | None:
    """Why `rollout` is not exported; None where it is."""
    reward = rollout.reward
    if chosen.mode is not None and rollout.mode != chosen.mode:
        return f"mode {rollout.mode}"
    if form.tokens and rollout.capture_level != "tokens":
        return f"capture level {rollout.capture_level}"
    if reward is None:
        return "no valid score" if form.scored and (form.tokens or not chosen.unscored) else None
    if chosen.min_reward is not None and reward < chosen.min_reward:
        return f"reward below {chosen.min_reward:g}"
    return None


def _filters(chosen: Selection) -> Any:
    return {} if chosen.run_id is None else {"run_id": chosen.run_id}


def _take(store: Store, form: Format, chosen: Selection, sink: Sink, rollout_id: str) -> None:
    state: State = sink.state
    reason = left_out(form, chosen, store.rollout(rollout_id))
    written = 0 if reason else sink.write(rollout_id, form.rows(store.get(rollout_id)))
    if reason is None and not written:
        reason = "nothing was recorded that this form can hold"
    if reason is not None:
        state.left_out[reason] = state.left_out.get(reason, 0) + 1
    else:
        state.rollouts, state.rows = state.rollouts + 1, state.rows + written
