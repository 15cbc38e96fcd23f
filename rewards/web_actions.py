"""Rewards for single actions of a GUI agent against those of a demonstration.

An action is a mapping with `type` (click, type, ...), `target` (a point (x, y), a box (x, y, width, height), or the
name of an element) and `value` (text, direction, ...). The hierarchy gives credit in order: what kind of action, then
where, then what; a later level counts only where the earlier ones are right.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from palestra.rewards.score import GraderError
from palestra.trajectories.model import Score

WEIGHTS = (0.2, 0.5, 0.3)
"""Of type, target and value."""
NAME, VERSION = "web-action", "1"


def action_reward(got: Mapping[str, Any], gold: Mapping[str, Any], *, radius: float = 14.0) -> Score:
    """Type, target and value in order, weighted by WEIGHTS; `radius` in pixels for a gold target that is a point.

    Levels that the gold action does not have are left out and the rest weighted accordingly.
    """
    levels: list[tuple[str, float]] = [("type", float(got.get("type") == gold.get("type")))]
    if gold.get("target") is not None:
        levels.append(("target", float(hits(got.get("target"), gold["target"], radius))))
    if gold.get("value") is not None:
        levels.append(("value", text_f1(str(got.get("value") or ""), str(gold["value"]))))
    weights = dict(zip(("type", "target", "value"), WEIGHTS, strict=True))
    total, reached, open_ = 0.0, 0.0, 1.0
    for name, share in levels:
        total += weights[name]
        reached += weights[name] * share * open_
        open_ *= float(share > 0.5)
    return Score(reached / total, True, dict(levels), NAME, VERSION, f"{got!r} for {gold!r}"[:300])


def hits(got: Any, gold: Any, radius: float = 14.0) -> bool:
    """Whether a target is the gold one: inside its box, within `radius` of its point, or the same name.

    Raises GraderError for a gold target that is none of these.
    """
    if isinstance(gold, str | int):
        return str(got).strip() == str(gold).strip()
    if not isinstance(gold, Sequence) or len(gold) not in (2, 4) or not all(math.isfinite(n) for n in gold):
        raise GraderError(f"a gold target is a name, (x, y) or (x, y, width, height), not {gold!r}")
    point = _point(got)
    if point is None:
        return False
    if len(gold) == 2:
        return math.dist(point, gold) <= radius
    x, y, width, height = gold
    return bool(x <= point[0] <= x + width and y <= point[1] <= y + height)


def _point(value: Any) -> tuple[float, float] | None:
    """(x, y) of a point, or the middle of a box; None for anything else."""
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) not in (2, 4):
        return None
    if not all(isinstance(n, int | float) and math.isfinite(n) for n in value):
        return None
    if len(value) == 2:
        return float(value[0]), float(value[1])
    return value[0] + value[2] / 2, value[1] + value[3] / 2


def text_f1(got: str, gold: str) -> float:
    """F1 of the words, without case; 1 for two empty texts."""
    one, other = Counter(got.lower().split()), Counter(gold.lower().split())
    if not one or not other:
        return float(one == other)
    common = sum((one & other).values())
    return 2 * common / (sum(one.values()) + sum(other.values()))


def grounding_accuracy(got: Sequence[Any], gold: Sequence[Any], *, radius: float = 14.0) -> float:
    """Share of targets that hit (as in ScreenSpot, arXiv:2401.10935). Raises ValueError for unequal lengths or none."""
    if not gold or len(got) != len(gold):
        raise ValueError(
            f"need as many targets as gold ones, and at least one; got {len(got)} and {len(gold)}"
        )
    return sum(hits(g, w, radius) for g, w in zip(got, gold, strict=True)) / len(gold)


def step_efficiency(value: float, steps: int, best: int, *, floor: float = 0.5) -> float:
    """`value` times best / steps, at least `floor` of it: the shortest way to a success is worth the most.

    A failure stays 0. Raises ValueError for fewer than one step.
    """
    if steps < 1 or best < 1:
        raise ValueError(f"steps and best must be at least 1, got {steps} and {best}")
    return value * max(floor, min(1.0, best / steps))
