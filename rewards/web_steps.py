"""Which steps of recorded GUI rollouts are worth learning from, judged one by one and not by the outcome alone.

Step-level filtering in the manner of WebSTAR: a rollout that ended badly holds good steps, and one that ended well
holds bad ones. What needs no judge is decided here: steps that were malformed, that an error answered, that changed
nothing, that the next step undid, or that repeated an action in the same state. A `judge` may score the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from palestra.trajectories.model import EnvStep

Judge = Callable[[EnvStep], float]
"""Expected value of a step, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a step is kept, and why not."""

    index: int
    kept: bool
    reason: str = ""


def filter_steps(
    steps: Sequence[EnvStep], *, judge: Judge | None = None, threshold: float = 0.5, last_anchor: str = ""
) -> list[Verdict]:
    """A verdict for each step of one rollout. `last_anchor` names the state after the last step, where it is known."""
    anchors = [step.anchor for step in steps] + [last_anchor]
    seen: set[tuple[str, str]] = set()
    verdicts = []
    for at, step in enumerate(steps):
        reason = _objection(steps, anchors, at, seen)
        if not reason and judge is not None and (value := judge(step)) < threshold:
            reason = f"judged {value:g}"
        verdicts.append(Verdict(step.index, not reason, reason))
        seen.add((step.anchor, step.action))
    return verdicts


def _objection(steps: Sequence[EnvStep], anchors: Sequence[str], at: int, seen: set[tuple[str, str]]) -> str:
    step, after = steps[at], anchors[at + 1]
    ends = step.terminated or step.truncated
    if not step.valid_action:
        return "malformed"
    if step.observation.startswith("error:"):
        return "error"
    if (step.anchor, step.action) in seen:
        return "repeated"
    if not ends and after and after == step.anchor:
        return "changed nothing"
    if at + 2 < len(anchors) and anchors[at + 2] == step.anchor and after != step.anchor:
        return "undone by the next step"
    return ""
