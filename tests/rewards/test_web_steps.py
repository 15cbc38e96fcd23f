"""Which recorded steps are kept."""

from __future__ import annotations

from palestra.rewards.web_steps import filter_steps
from palestra.trajectories.model import EnvStep


def step(
    index: int, anchor: str, action: str, observation: str = "page", valid: bool = True, end: bool = False
) -> EnvStep:
    return EnvStep(index, None, None, action, observation, 0.0, end, False, anchor, "digest", valid)


def test_each_objection() -> None:
    steps = [
        step(0, "a", "click 1"),
        step(1, "b", "nonsense", valid=False),
        step(2, "b", "click 9", "error: there is no element [9]"),
        step(3, "b", "scroll 10"),
        step(4, "b", "click 2"),
        step(5, "c", "back"),
        step(6, "b", "click 2"),
        step(7, "d", "submit", end=True),
    ]
    found = {v.index: v.reason for v in filter_steps(steps, last_anchor="d")}
    assert found == {0: "", 1: "malformed", 2: "error", 3: "changed nothing", 4: "undone by the next step",
                     5: "", 6: "repeated", 7: ""}  # fmt: skip


def test_a_judge_has_the_last_word() -> None:
    steps = [step(0, "a", "click 1"), step(1, "b", "click 2", end=True)]
    found = filter_steps(steps, judge=lambda s: 0.9 if s.index else 0.1)
    assert [v.kept for v in found] == [False, True] and found[0].reason == "judged 0.1"


def test_no_steps() -> None:
    assert filter_steps([]) == []
