"""Every name of every registry can be picked, and what cannot be is said before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from palestra.training.advantages import adjusters, estimators, reshapers
from palestra.training.checks import check, problems
from palestra.training.config import TrainConfig
from palestra.training.errors import ConfigError
from palestra.training.losses import corrections, losses
from palestra.training.proximal import proximals
from palestra.training.replay import replays
from palestra.training.samplers import samplers

CRITIC = "gae"
"""Needs a column that no recorded rollout has."""


@pytest.mark.parametrize(
    ("key", "name"),
    [
        *(("sampler", name) for name in samplers),
        *(("replay", name) for name in replays),
        *(("estimator", name) for name in estimators if name != CRITIC),
        *(("loss", name) for name in losses),
        *(("proximal", name) for name in proximals),
    ],
)
def test_every_name_can_be_picked(key: str, name: str) -> None:
    config: Any = {key: name}
    assert list(problems(TrainConfig(**config))) == []


@pytest.mark.parametrize("name", corrections)
def test_every_correction_can_be_picked(name: str) -> None:
    assert list(problems(TrainConfig(correction=name, proximal="step"))) == []


@pytest.mark.parametrize("name", adjusters)
def test_every_adjustment_can_be_picked(name: str) -> None:
    assert list(problems(TrainConfig(adjust=({"name": name},)))) == []


@pytest.mark.parametrize("name", reshapers)
def test_every_change_of_rewards_can_be_picked(name: str) -> None:
    assert list(problems(TrainConfig(reshape=({"name": name},)))) == []


def test_a_column_that_no_rollout_records_is_missed_at_once() -> None:
    with pytest.raises(
        ConfigError, match=r"column 'value' is needed .*a critic's estimate.*no critic is trained"
    ):
        check(TrainConfig(estimator=CRITIC))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": "gpso"}, "loss: there is no 'gpso', did you mean gspo?"),
        ({"loss_options": {"clip": 0.2}}, "loss_options: clipped has no clip, did you mean clip_low?"),
        ({"sampler": "dars", "sampler_options": {"task": "dps"}}, "dars has no task, did you mean tasks?"),
        ({"sampler_options": {"a": 1}}, "sampler_options: uniform has no a, it has no options"),
        ({"sampler": "difficulty", "sampler_options": {"temperature": 0}}, "temperature must be above 0"),
        ({"sampler": "dars", "sampler_options": {"tasks": "dars"}}, "tasks: there is no 'dars'"),
        ({"adjust": ({"name": "d4s"},)}, "adjust: there is no 'd4s', did you mean d3s?"),
        ({"adjust": ({"name": "d3s", "share": 0},)}, "adjust: share is above 0"),
        ({"estimator_options": {"compat": "magic"}}, "estimator: compat names"),
        ({"replay": "recent", "replay_options": {"share": -1}}, "replay_options: share is at least 0"),
        ({"proximal": "ewma", "proximal_options": {"decay": 2}}, "proximal_options: decay is at least 0"),
        ({"horizon": {"turns": []}}, "horizon: a schedule needs stages"),
        ({"pace": "capacity"}, "needs staleness of at least 1"),
        (
            {"pace": "capacity", "staleness": 1, "pace_options": {"max_running": 9}},
            "pace_options: max_running must be at least the 128 rollouts of a step, not 9",
        ),
        ({"correction": "tis"}, "correction compares the proximal policy with the one that sampled"),
        ({"scale_by_ess": True}, "scale_by_ess compares"),
        ({"token_share": 1.5}, "token_share must be at most 1"),
    ],
)
def test_what_does_not_fit_is_said(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        check(TrainConfig(**changes))
    assert said in str(error.value)
