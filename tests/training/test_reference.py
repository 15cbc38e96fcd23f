"""The policy that a run began with: what is measured against it, and that no update changes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from palestra.training.config import TrainConfig
from palestra.training.policy import Policy
from palestra.training.reference import Reference
from palestra.trajectories.sample import Sample
from tiny_training import CONFIG, MakeTrainer, ignore

MakeSample = Callable[..., Sample]


def plain(policy: Policy, sample: Sample, call: int) -> float:
    """Sum over the tokens of a call, with the logits of the whole sequence."""
    ids = torch.from_numpy(sample.ids).long()[None]
    with torch.no_grad():
        log_p = torch.log_softmax(policy.model(input_ids=ids).logits[0] / policy.temperature, -1)
    at = torch.from_numpy(((sample.calls == call) & sample.loss_mask).nonzero()[0])
    return float(log_p[at - 1, ids[0, at]].sum())


@pytest.mark.parametrize("token_budget", [30, 1 << 20])
@pytest.mark.parametrize("layout", ["rows", "tree"])
def test_log_ratios_are_summed_over_each_call(
    policy: Policy, make_sample: MakeSample, layout: str, token_budget: int
) -> None:
    policy.temperature = 0.8
    reference = Reference(policy)
    views = [make_sample(f"r{i}", prompt=6, replies=[4, 1, 3]) for i in range(3)]
    got = reference.log_ratios(views, TrainConfig(layout=layout, token_budget=token_budget))
    for v in views:
        for call in range(3):
            recorded = float(v.logprobs[(v.calls == call) & v.loss_mask].sum())
            assert got[v.rollout_id, call] == pytest.approx(recorded - plain(policy, v, call), abs=1e-4)
    assert len(got) == 9 and reference.log_ratios([], TrainConfig()) == {}


async def test_confidence_is_measured_against_the_policy_that_the_run_began_with(
    make_trainer: MakeTrainer,
) -> None:
    config = replace(CONFIG, steps=3, adjust=({"name": "confidence_punished"},))
    trainer = await make_trainer(config)
    largest: list[float] = []
    measure = trainer._updater.log_ratios

    def watched(trajectories: object) -> object:
        ratios = measure(trajectories)  # type: ignore[arg-type]
        assert ratios is not None and len(ratios) == 8 * 3
        largest.append(max(map(abs, ratios.values())))
        return ratios

    trainer._updater.log_ratios = watched  # type: ignore[method-assign, assignment]
    await trainer.train(ignore)
    assert largest[0] < 1e-3, "the first rollouts are of that policy"
    assert min(largest[1:]) > 1e-2, "the later ones are not"
