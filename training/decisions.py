"""From recorded rollouts to the step table, whatever calls they made: in a loop of ours or in a command-line agent.

One row is one trained call (`trajectories.sample.TRAINED_ROLES`, delivered), once, however many branches it is seen
in. Histories that were forked, retried or recorded again add no row, so they change no statistic.

**Anchors.** The state a decision was taken in is the anchor of the first environment step that its call caused; a
black-box agent on the machine of a world has such steps too (`rollouts.harnesses.onlooker`). Where a rollout's steps
carry state digests and no anchors, as those of an agent elsewhere may, it is the digest after the last step that an
earlier call caused; before any step it is the start, the same for all rollouts of the group.

**Sub-agents and compaction.** A rollout has one score and counts once in every statistic. What a sub-agent does is one
action of the agent's: see `training.advantages.returns.discounted_returns`. Each of its conversations is a branch,
named by its first call. A conversation that goes on after its history was compacted is the agent's own.

**Validity.** `Rollout.reward` is None where there is no valid score. That makes the rows invalid here, and `valid` is
the one mask that every estimator, the loss and the samplers go by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from palestra.training.table import EXTRAS, StepTable
from palestra.trajectories.model import Call, EnvStep, Node, Trajectory
from palestra.trajectories.sample import TRAINED_ROLES

START = "(start)"
"""Anchor of the state that no step has changed yet, where states are known by digests alone."""
RECORDED = ("node", "action", "duration_s", "logprob", "energy", "process", "weight", "branch")
"""Optional columns that recorded rollouts fill in."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """A step table and, for each of its rows, (rollout id, Call.seq)."""

    table: StepTable
    keys: list[tuple[str, int]]


LogRatios = Mapping[tuple[str, int], float]
"""log(policy / reference policy), summed over the tokens of a decision, by (rollout id, Call.seq)."""


def decisions(
    trajectories: Sequence[Trajectory],
    baselines: Mapping[str, float] | None = None,
    log_ratios: LogRatios | None = None,
) -> Decisions:
    """The step table of recorded rollouts: one row per trained call.

    A row's reward is the sum over the steps its call caused; what the score holds beyond that (an outcome graded
    after the last step) goes to the last row of the agent itself, so that a rollout's rows always sum to its score.
    A rollout without a trained call, in which the policy decided nothing, has no row.

    Optional columns, of RECORDED: `node` names a decision by all tokens up to it, so rollouts share it for as long as
    they went the same way; `action` is the first action; `duration_s` of its steps; `logprob` the mean over its
    tokens; `energy` sums (1 - p)^2, its value where the rest of the probability is spread thin and a lower bound
    elsewhere; `process` the rewards of its steps but the one that ended the episode; `weight` 1. Where the world of
    every scored rollout knows an expert, also `matched`: an action of the decision was the expert's. With
    `baselines`, scores of a greedy rollout by group id, also `baseline`; a group without one is not valid, since there
    is nothing to compare it with. With `log_ratios`, of every decision with tokens in a scored rollout, `log_ratio`.
    """
    rows = [row for t in trajectories for row in _rows(t)]
    names: tuple[str, ...] = ("group", "rollout", "turn", "reward", "anchor", "valid", "tokens", *RECORDED)
    if all(_knows_expert(t) for t in trajectories):
        names = (*names, "matched")
    if baselines is not None:
        names = (*names, "baseline")
        rows = [row | _compared(row, baselines) for row in rows]
    if log_ratios is not None:
        names = (*names, "log_ratio")
        rows = [row | {"log_ratio": _log_ratio(row, log_ratios)} for row in rows]
    assert EXTRAS.keys() >= set(RECORDED)
    columns: dict[str, list[Any]] = {name: [row[name] for row in rows] for name in names}
    keys = [(row["rollout"], row["seq"]) for row in rows]
    return Decisions(StepTable.from_columns(**columns), keys)


def _rows(t: Trajectory) -> Iterator[dict[str, Any]]:
    trained = [c for c in t.calls if c.delivered and c.role in TRAINED_ROLES]
    calls = sorted(trained, key=lambda c: c.seq)  # calls made at once are recorded as they end
    caused: dict[int, list[EnvStep]] = {c.seq: [] for c in calls}
    for step in t.steps:
        if step.call in caused:
            caused[step.call].append(step)
    rewards, anchors = _rewards(t, calls, caused), _anchors(t, calls, caused)
    names, branches = _names(t, calls), _branches(t, calls)
    for turn, call in enumerate(calls):
        steps, logprobs = caused[call.seq], t.nodes[call.node_id].logprobs.astype(np.float64)
        yield {
            "seq": call.seq,
            "group": t.rollout.group_id,
            "rollout": t.rollout.rollout_id,
            "turn": turn,
            "reward": rewards[turn],
            "anchor": anchors[turn],
            "valid": t.rollout.reward is not None,
            "tokens": len(logprobs),
            "node": names[turn],
            "action": steps[0].action if steps else None,
            "duration_s": sum(s.duration_s for s in steps),
            "logprob": float(logprobs.mean()) if len(logprobs) else 0.0,
            "energy": float(np.square(1.0 - np.exp(logprobs)).sum()),
            "process": sum(s.reward for s in steps if not (s.terminated or s.truncated)),
            "weight": 1.0,
            "branch": branches[turn],
            "matched": any(s.matched for s in steps),
        }


def _knows_expert(t: Trajectory) -> bool:
    return t.rollout.reward is None or not t.steps or any(s.matched is not None for s in t.steps)


def _compared(row: Mapping[str, Any], baselines: Mapping[str, float]) -> dict[str, Any]:
    group = row["group"]
    return {"baseline": baselines.get(group, 0.0), "valid": row["valid"] and group in baselines}


def _log_ratio(row: Mapping[str, Any], log_ratios: LogRatios) -> float:
    return log_ratios[row["rollout"], row["seq"]] if row["valid"] and row["tokens"] else 0.0


def _rewards(t: Trajectory, calls: Sequence[Call], caused: dict[int, list[EnvStep]]) -> list[float]:
    rewards = [sum(step.reward for step in caused[c.seq]) for c in calls]
    if rewards and t.rollout.reward is not None:
        own = [i for i, call in enumerate(calls) if call.role == "agent"]
        rewards[own[-1] if own else -1] += t.rollout.reward - sum(rewards)
    return rewards


def _anchors(t: Trajectory, calls: Sequence[Call], caused: dict[int, list[EnvStep]]) -> list[str | None]:
    if any(step.anchor for step in t.steps):
        return [steps[0].anchor or None if (steps := caused[c.seq]) else None for c in calls]
    if not any(step.state_digest for step in t.steps):
        return [None] * len(calls)
    return [_digest_before(t.steps, call) for call in calls]


def _digest_before(steps: Sequence[EnvStep], call: Call) -> str:
    """Of the state after the last step that an earlier call caused."""
    digest = START
    for step in steps:
        if step.call is not None and step.call < call.seq and step.state_digest:
            digest = step.state_digest
    return digest


def _names(t: Trajectory, calls: Sequence[Call]) -> list[bytes]:
    """A name of each decision by everything that came before it: equal tokens, equal name."""
    digests: dict[int | None, bytes] = {None: b""}
    for node in t.nodes:
        digests[node.node_id] = _digest(digests[node.parent], node.token_ids.tobytes())
    names, before = list[bytes](), b""
    for call in calls:
        before = _digest(before, digests[call.node_id])
        names.append(before)
    return names


def _digest(*parts: bytes) -> bytes:
    return blake2b(b"".join(parts), digest_size=16).digest()


def _branches(t: Trajectory, calls: Sequence[Call]) -> list[int | None]:
    """Seq of the first call of the sub-agent conversation that each call belongs to; None for the agent's own."""
    of_node = {c.node_id: c for c in calls if c.role == "subagent"}
    return [_first(t.nodes, of_node, c) if c.role == "subagent" else None for c in calls]


def _first(nodes: Sequence[Node], of_node: dict[int, Call], call: Call) -> int:
    first, cursor = call.seq, nodes[call.node_id].parent
    while cursor is not None:
        if cursor in of_node:
            first = of_node[cursor].seq
        cursor = nodes[cursor].parent
    return first
