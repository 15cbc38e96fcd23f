"""What the trainer asks: every sampler of the registry, and what each allocator does with a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.tasks.task import TaskSet
from palestra.training.samplers import Allocator, Budget, Draw, Group, samplers
from palestra.training.samplers.gdro import difficulty_class
from palestra.training.samplers.xrpo import half_width

MakeTasks = Callable[..., TaskSet]
BUDGET = Budget(groups=3, group_size=4)
every = pytest.mark.parametrize("name", samplers)
quick = settings(max_examples=10, deadline=None)
RATES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, None]), min_size=9, max_size=9)


def play(allocator: Allocator, rates: Sequence[float | None], budget: Budget = BUDGET) -> list[Group]:
    """A whole step: task i succeeds in a share rates[i] of its rollouts; None: all of them fail."""
    groups: dict[str, Group] = {}
    for _ in range(50):
        draws = allocator.propose(budget, list(groups.values()))
        if not draws:
            return list(groups.values())
        for draw in draws:
            groups[draw.group] = _more(groups.get(draw.group), draw, rates[int(draw.task.id[1:])])
    raise AssertionError("it never ends")


def _more(group: Group | None, draw: Draw, rate: float | None) -> Group:
    before = () if group is None else group.scores
    total = len(before) + draw.rollouts
    scores = [None if rate is None else float(k % 4 < 4 * rate) for k in range(total)]
    return Group(draw.task, draw.group, tuple(scores))


@every
class TestEvery:
    @quick
    @given(steps=st.lists(RATES, max_size=3), last=RATES)
    def test_a_restored_state_continues(
        self, name: str, parity_tasks: MakeTasks, steps: list[list[float | None]], last: list[float | None]
    ) -> None:
        tasks = parity_tasks(9)
        one, other = samplers[name](tasks, 1), samplers[name](tasks, 1)
        for rates in steps:
            one.observe(play(one, rates))
        other.load_state_dict(orjson.loads(orjson.dumps(one.state_dict())))
        assert play(one, last) == play(other, last)

    @quick
    @given(rates=RATES)
    def test_an_interrupted_step_is_proposed_anew(
        self, name: str, parity_tasks: MakeTasks, rates: list[float | None]
    ) -> None:
        allocator = samplers[name](parity_tasks(9), 0)
        before = orjson.dumps(allocator.state_dict())
        first = play(allocator, rates)
        allocator.load_state_dict(orjson.loads(before))
        assert play(allocator, rates) == first

    @quick
    @given(rates=RATES)
    def test_some_groups_are_trained_and_all_weights_are_positive(
        self, name: str, parity_tasks: MakeTasks, rates: list[float | None]
    ) -> None:
        allocator = samplers[name](parity_tasks(9), 0)
        played = play(allocator, rates)
        weights = allocator.weights(BUDGET, played)
        assert weights and weights.keys() <= {g.name for g in played}
        assert all(w > 0 for w in weights.values())
        assert len({g.name for g in played}) == len(played) >= BUDGET.groups
        assert all(len(g.scores) >= 2 for g in played)

    def test_failures_of_ours_teach_it_nothing(self, name: str, parity_tasks: MakeTasks) -> None:
        one, other = (samplers[name](parity_tasks(9), 0) for _ in range(2))
        groups = play(one, [0.5] * 9)
        play(other, [0.5] * 9)
        lost = [Group(g.task, g.name, (*g.scores[:2], *[None] * (len(g.scores) - 2))) for g in groups]
        gone = [Group(g.task, g.name, (*g.scores[:2], *[None] * (len(g.scores) - 2))) for g in groups]
        one.observe([*lost[:2], Group(lost[2].task, lost[2].name, (None,) * len(groups[2].scores))])
        other.observe([*gone[:2], Group(gone[2].task, gone[2].name, (None,) * len(groups[2].scores))])
        assert one.state_dict() == other.state_dict()
        assert "nan" not in str(one.state_dict()).lower()

    def test_more_groups_than_tasks(self, name: str, parity_tasks: MakeTasks) -> None:
        played = play(samplers[name](parity_tasks(2), 0), [0.5, 0.5])
        assert len({g.name for g in played}) == len(played) == 3


def test_dapo_plays_on_until_enough_groups_have_spread(parity_tasks: MakeTasks) -> None:
    rates = [0.0, 0.5, 1.0, 0.5, 0.0, 1.0, 0.5, 0.5, 0.5]
    dapo = samplers["dapo"](parity_tasks(9), 0)
    played = play(dapo, rates)
    kept = dapo.weights(BUDGET, played)
    assert len(kept) == 3 and all(g.spread > 0 for g in played if g.name in kept)
    assert len(played) > 3


def test_dapo_gives_up_after_some_rounds_and_keeps_what_there_is(parity_tasks: MakeTasks) -> None:
    dapo = samplers["dapo"](parity_tasks(9), 0, max_rounds=2)
    played = play(dapo, [1.0] * 9)
    assert len(played) == 6 and len(dapo.weights(BUDGET, played)) == 6


def test_dars_gives_hard_tasks_more(parity_tasks: MakeTasks) -> None:
    rates = [0.0, 0.25, 1.0]
    dars = samplers["dars"](parity_tasks(3), 0, max_rollouts=10)
    sizes = {g.task.id: len(g.scores) for g in play(dars, rates)}
    assert sizes["t2"] == 4 < sizes["t1"] < sizes["t0"] == 10


def test_dars_over_another_task_sampler(parity_tasks: MakeTasks) -> None:
    dars = samplers["dars"](parity_tasks(9), 0, tasks="difficulty", task_options={"target": 0.3})
    assert "success" in dars.state_dict()["tasks"]
    with pytest.raises(ValueError, match="tasks: there is no 'dars'; there are uniform, dps"):
        samplers["dars"](parity_tasks(9), 0, tasks="dars")


@quick
@given(rates=RATES)
def test_xrpo_spends_its_budget_and_no_more(parity_tasks: MakeTasks, rates: Sequence[float | None]) -> None:
    played = play(samplers["xrpo"](parity_tasks(9), 0), rates)
    assert sum(len(g.scores) for g in played) == BUDGET.rollouts


def test_xrpo_looks_where_it_is_uncertain(parity_tasks: MakeTasks) -> None:
    played = play(samplers["xrpo"](parity_tasks(3), 0, exploration=0.0), [0.0, 0.5, 1.0], Budget(3, 16))
    sizes = {g.task.id: len(g.scores) for g in played}
    assert sizes["t1"] > sizes["t0"] == sizes["t2"]


def test_an_interval_of_few_is_wider() -> None:
    widths = [half_width(1.0, n) for n in range(1, 40)]
    assert widths == sorted(widths, reverse=True) and widths[0] == float("inf")


class TestGdro:
    def test_classes(self) -> None:
        assert [difficulty_class(p, 5) for p in (-1, 0.0, 0.19, 0.2, 0.5, 1.0, 2)] == [0, 0, 0, 1, 2, 4, 4]

    def test_the_hard_class_comes_to_weigh_more(self, parity_tasks: MakeTasks) -> None:
        gdro = samplers["gdro"](parity_tasks(3), 0, eta=5.0)
        for _ in range(20):
            played = play(gdro, [0.0, 0.5, 1.0])
            gdro.observe(played)
        weights = {n.partition("#")[0]: w for n, w in gdro.weights(BUDGET, played).items()}
        assert weights["t0"] > weights["t1"] > weights["t2"]
        assert max(weights.values()) <= 10

    @quick
    @given(steps=st.lists(RATES, min_size=1, max_size=6))
    def test_rollouts_stay_within_the_budget(self, parity_tasks: MakeTasks, steps: list[Any]) -> None:
        gdro = samplers["gdro_rollout"](parity_tasks(9), 0)
        for rates in steps:
            played = play(gdro, rates)
            assert sum(len(g.scores) for g in played) <= BUDGET.rollouts
            assert all(2 <= len(g.scores) <= 12 for g in played)
            gdro.observe(played)

    def test_a_class_without_variance_gets_fewer_rollouts(self, parity_tasks: MakeTasks) -> None:
        gdro = samplers["gdro_rollout"](parity_tasks(2), 0, eta=3.0)
        budget = Budget(2, 4)
        for _ in range(60):
            played = play(gdro, [0.0, 0.5], budget)
            gdro.observe(played)
        sizes = {g.task.id: len(g.scores) for g in played}
        assert sizes["t1"] > sizes["t0"]


def test_difficulty_targets_what_is_solved_half_of_the_time(parity_tasks: MakeTasks) -> None:
    sampler = samplers["difficulty"](parity_tasks(9), 0, temperature=0.05)
    rates = [0.0, 0.5, 1.0] * 3
    for _ in range(12):
        sampler.observe(play(sampler, rates))
    drawn = [g.task.id for _ in range(10) for g in play(sampler, rates)]
    assert sum(i in ("t1", "t4", "t7") for i in drawn) / len(drawn) > 0.8
