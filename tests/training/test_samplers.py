"""Every task once per epoch, and a state from which the order continues."""

from __future__ import annotations

from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.tasks.task import TaskSet
from palestra.training.samplers import UniformSampler

MakeTasks = Callable[..., TaskSet]


def ids(sampler: UniformSampler, count: int) -> list[str]:
    return [task.id for task in sampler.propose(count)]


def test_epochs_hold_every_task_once_in_a_new_order(parity_tasks: MakeTasks) -> None:
    sampler = UniformSampler(parity_tasks(10), seed=0)
    epochs = [ids(sampler, 10) for _ in range(3)]
    assert all(sorted(e) == sorted(epochs[0]) for e in epochs)
    assert epochs[0] != epochs[1] != epochs[2]


@given(st.lists(st.integers(0, 9), max_size=6), st.integers(1, 7), st.integers(0, 3))
def test_how_many_are_drawn_at_once_does_not_matter(
    parity_tasks: MakeTasks, counts: list[int], size: int, seed: int
) -> None:
    tasks = parity_tasks(size)
    sampler = UniformSampler(tasks, seed)
    assert sum((ids(sampler, c) for c in counts), []) == ids(UniformSampler(tasks, seed), sum(counts))


@given(st.integers(0, 30), st.integers(0, 30))
def test_a_restored_state_continues(parity_tasks: MakeTasks, before: int, after: int) -> None:
    tasks = parity_tasks(7)
    sampler, restored = UniformSampler(tasks, 1), UniformSampler(tasks, 1)
    sampler.propose(before)
    restored.load_state_dict(orjson.loads(orjson.dumps(sampler.state_dict())))
    assert ids(restored, after) == ids(sampler, after)


def test_seeds_give_other_orders(parity_tasks: MakeTasks) -> None:
    tasks = parity_tasks(10)
    assert ids(UniformSampler(tasks, 0), 10) != ids(UniformSampler(tasks, 1), 10)


def test_an_empty_set_is_refused() -> None:
    with pytest.raises(ValueError, match="task set 'none' is empty"):
        UniformSampler(TaskSet("none", []), 0)
