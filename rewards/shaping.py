"""Composing a score from parts. The value that training sees is one number; the parts stay beside it.

    gated(score, ["tool_use"], delta=1.0)        G-RA: small rewards count once the outcome is good enough
    partial_credit(score, weight=0.3)            some credit for some of the tests

A score that is not valid stays as it is: what was not measured cannot be shaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from palestra.trajectories.model import Score


def gated_return(outcome: float, small: Iterable[float], delta: float = 1.0) -> float:
    """R = R_high + [R_high >= delta] * sum(r_low): gated reward accumulation (G-RA, arXiv 2508.10548).

    The paper's abstract leaves open whether the gate opens at delta itself; here it does.
    """
    return outcome + sum(small) if outcome >= delta else outcome


def gated(score: Score, parts: Mapping[str, float], delta: float = 1.0) -> Score:
    """`score` with weighted parts added once its value reaches `delta`; `parts` is {name of a part: weight}.

    Parts that the score lacks count nothing. The ungated value is kept as the part "outcome".
    """
    if score.value is None:
        return score
    small = [weight * score.parts[name] for name, weight in parts.items() if name in score.parts]
    return _revalued(score, gated_return(score.value, small, delta))


def partial_credit(
    score: Score, weight: float = 0.3, fixed: str = "fail_to_pass", kept: str = "pass_to_pass"
) -> Score:
    """Up to `weight` below a full score for the share of tests that were fixed, if nothing that passed broke.

    An outcome of 1 stays 1; raises ValueError for a weight that would let some tests be worth as much as all.
    """
    if not 0 <= weight < 1:
        raise ValueError(f"weight must be at least 0 and below 1, got {weight:g}")
    if score.value is None or score.value >= 1 or score.parts.get(kept, 0.0) < 1:
        return score
    return _revalued(score, max(score.value, weight * score.parts.get(fixed, 0.0)))


def _revalued(score: Score, value: float) -> Score:
    assert score.value is not None
    return replace(score, value=value, parts={"outcome": score.value, **score.parts})
