"""DARS, DPS and ScalingInter against the authors' numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from palestra.training.samplers import HorizonSchedule, TaskStates, extra_rollouts

Read = Callable[..., Any]
PROGRESS = [[1.0, 0.5, 0.5], [1.0, 1.0, 0.5], [1.0, 1.0, 1.0]]


def test_dars(vectors: Read) -> None:
    for case in vectors("dars_schedule.json"):
        inputs = case["acc"], case["N"], case["N_max"]
        got = extra_rollouts(*inputs, by_std=case["std"])
        assert got == case["ET"], case
        got = extra_rollouts(*inputs, schedule="hardness-weighted", by_std=case["std"])
        assert got == case["HW"], case


def test_dps(vectors: Read) -> None:
    for case in vectors("dps.json"):
        prior = case["config"]["prior_alpha"]
        states = TaskStates(decay=case["config"]["decay"], prior=PROGRESS if prior == "progress" else prior)
        for step in case["steps"]:
            states.predicted(map(str, step["candidates"]))
            chosen = [str(i) for i in step["selected"]]
            np.testing.assert_allclose(states.predicted(chosen), step["selected_state_probs"], atol=1e-6)
            states.observe(dict(zip(chosen, step["success_rate"], strict=True)))
            assert states.states.keys() == step["pis"].keys()
            for task_id in step["pis"]:
                np.testing.assert_allclose(states.states[task_id], step["pis"][task_id], atol=1e-6)
                np.testing.assert_allclose(states.counts[task_id], step["alphas"][task_id], atol=1e-6)


def test_scaling_inter(vectors: Read) -> None:
    """After a resume the authors' counter is early: it enters the next stage with its first step."""
    resumed_early = 0
    for case in vectors("scaling_inter.json"):
        k, first = case["steps_scaling_inter"], case["set_global_steps"] or 0
        schedule = HorizonSchedule(tuple(case["rounds"]), k)
        ours = [schedule.at(first + i) for i in range(len(case["rounds_used"]))]
        if ours != case["rounds_used"]:
            assert first % k == 0 and first
            assert [ours[0], *ours[k:]] == case["rounds_used"][: len(ours) - k + 1]
            resumed_early += 1
    assert resumed_early == 1
