"""The whole loop on a tiny model: what a step leaves behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palestra.tasks.task import TaskSet
from palestra.training.checkpoint import Checkpoints
from palestra.training.errors import CheckpointError
from palestra.training.policy import Policy
from palestra.training.trainer import StepResult, read_history
from palestra.trajectories.sample import samples
from tiny_training import CONFIG, MakeTrainer, ignore, same, weights

MakeTasks = Callable[..., TaskSet]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"estimator": "grpo", "aggregation": "rollout-mean"},
        {"updates_per_step": 2, "token_budget": 200, "estimator_options": {"gamma": 0.9}},
        {"temperature": 0.7},
        {"sampler": "dps", "loss": "gspo", "aggregation": "rollout-mean"},
        {"replay": "recent", "proximal": "ewma", "loss": "decoupled", "kl_weight": 0.01, "kl": "k3"},
        {"adjust": ({"name": "novelty_sharpened", "strength": 0.5}, {"name": "d3s", "share": 0.75})},
        {"reshape": ({"name": "gated"},), "entropy_weight": 0.01, "token_share": 0.8},
        {"proximal": "step", "correction": "sequence-mis", "scale_by_ess": True, "updates_per_step": 2},
    ],
)
async def test_two_steps(make_trainer: MakeTrainer, changes: dict[str, Any]) -> None:
    trainer = await make_trainer(replace(CONFIG, **changes))
    before, seen = weights(trainer), list[StepResult]()

    async def on_step(result: StepResult) -> None:
        seen.append(result)

    await trainer.train(on_step)
    assert [r.step for r in seen] == [1, 2]
    assert seen == trainer.history
    assert not same(weights(trainer), before)
    for result in seen:
        assert result.rollouts == 8 and result.failed == 0
        assert 0 < result.logprob_gap < 1e-4
        assert 0 <= result.reward == result.success <= 1
        assert result.turns == 3.0 and result.invalid == 0.0
        assert result.entropy > 0 and result.grad_norm > 0
    assert any(r.informative > 0 for r in seen)

    store = trainer._store
    assert len(store) == 16
    for trajectory in store:
        step = int(trajectory.rollout.group_id.partition("/")[0])
        assert trajectory.rollout.policy_versions == (step, step)
        values, meta = store.overlay(trajectory.rollout.rollout_id, "advantages") or (None, {})
        assert values is not None and values.shape == (3,)
        assert meta == {"estimator": trainer.config.estimator, "version": step}
    sampled = sum(int(s.loss_mask.sum()) for t in store for s in samples(t))
    assert sampled == sum(r.sampled_tokens for r in seen)


async def test_groups_of_varying_size(make_trainer: MakeTrainer) -> None:
    """DARS plays more of what is seldom solved, and XRPO of what is uncertain; ids stay distinct."""
    for number, sampler in enumerate(("dars", "xrpo", "gdro_rollout")):
        trainer = await make_trainer(replace(CONFIG, sampler=sampler, group_size=6), name=f"run{number}")
        await trainer.train(ignore)
        assert [r.step for r in trainer.history] == [1, 2]
        ids = trainer._store.ids()
        assert len(ids) == len(set(ids)) == sum(r.rollouts for r in trainer.history)


async def test_what_is_played_for_nothing_is_not_trained_on(
    make_trainer: MakeTrainer, parity_tasks: MakeTasks
) -> None:
    """DAPO: groups of equal scores are played and recorded, and left out of the batch."""
    trainer = await make_trainer(replace(CONFIG, steps=1, sampler="dapo", group_size=2, groups_per_step=3))
    trained: list[str] = []
    batches = trainer._batches

    def watched(chosen: Any) -> Any:
        trained.extend(e.group_id for _, e in chosen)
        assert all(e.informative for _, e in chosen)
        return batches(chosen)

    trainer._batches = watched  # type: ignore[method-assign]
    await trainer.train(ignore)
    scores: dict[str, set[float | None]] = {}
    for t in trainer._store:
        scores.setdefault(t.rollout.group_id, set()).add(t.rollout.reward)
    assert {g for g, values in scores.items() if len(values) > 1} >= set(trained) != set()


async def test_replayed_rollouts_bring_the_versions_that_sampled_them(make_trainer: MakeTrainer) -> None:
    trainer = await make_trainer(replace(CONFIG, steps=3, replay="recent", replay_options={"share": 1.0}))
    seen: list[set[int]] = []
    batches = trainer._batches

    def watched(chosen: Any) -> Any:
        made = batches(chosen)
        seen.append(set(made[0].versions[made[0].loss_mask].tolist()))
        return made

    trainer._batches = watched  # type: ignore[method-assign]
    await trainer.train(ignore)
    assert seen[0] == {0} and seen[2] > {2}
    assert all(r.logprob_gap < 1e-4 for r in trainer.history)


async def test_an_interrupted_run_ends_with_the_same_bits(make_trainer: MakeTrainer) -> None:
    """Sampler, replay buffer and averaged policy are in the checkpoint."""
    config = replace(
        CONFIG,
        steps=3,
        sampler="dars",
        sampler_options={"tasks": "vade"},
        replay="remix",
        proximal="ewma",
        loss="decoupled",
    )
    whole = await make_trainer(config, name="whole", deterministic=True)
    await whole.train(ignore)
    first = await make_trainer(replace(config, steps=1), name="parts", deterministic=True)
    await first.train(ignore)
    first._store.close()
    second = await make_trainer(config, name="parts", deterministic=True)
    await second.train(ignore)
    assert same(weights(whole), weights(second))
    assert whole.sampler.state_dict() == second.sampler.state_dict()
    assert whole._replay.state_dict() == second._replay.state_dict()
    assert sorted(whole._store.ids()) == sorted(second._store.ids())


@pytest.mark.parametrize("staleness", [1, 2])
async def test_rollouts_are_collected_ahead_and_no_staler_than_allowed(
    make_trainer: MakeTrainer, staleness: int
) -> None:
    config = replace(
        CONFIG, steps=5, staleness=staleness, loss="decoupled", proximal="loglinear", correction="tis"
    )
    trainer = await make_trainer(config)
    seen: list[set[int]] = []
    batches = trainer._batches

    def watched(chosen: Any) -> Any:
        made = batches(chosen)
        seen.append({trainer.step - int(v) for v in made[0].versions[made[0].loss_mask]})
        return made

    trainer._batches = watched  # type: ignore[method-assign]
    await trainer.train(ignore)
    assert all(ages <= set(range(staleness + 1)) for ages in seen)
    assert max(max(ages) for ages in seen) > 0, "some rollouts were sampled before the newest weights"
    assert len(trainer._store) == 5 * 8


async def test_a_run_that_collected_ahead_continues_with_what_is_stored(make_trainer: MakeTrainer) -> None:
    """The tasks are those of a run without interrupt, and no rollout is played twice."""
    config = replace(CONFIG, steps=4, staleness=1, sampler="dps")
    whole = await make_trainer(config, name="whole")
    await whole.train(ignore)

    async def stop(result: StepResult) -> None:
        if result.step == 2:
            while len(first._store) < 3 * 8:
                await asyncio.sleep(0.01)
            raise LookupError("no more")

    first = await make_trainer(config, name="parts")
    with pytest.raises(LookupError):
        await first.train(stop)
    played = set(first._store.ids())
    first._store.close()
    second = await make_trainer(config, name="parts")
    await second.train(ignore)
    ids = second._store.ids()
    assert len(ids) == len(set(ids)) == 4 * 8 and played <= set(ids)
    assert [r.step for r in second.history] == [1, 2, 3, 4]


async def test_remax_plays_a_greedy_rollout_of_each_group_and_does_not_train_on_it(
    make_trainer: MakeTrainer,
) -> None:
    trainer = await make_trainer(replace(CONFIG, steps=1, estimator="remax", group_size=2))
    await trainer.train(ignore)
    greedy = {r.group_id: r.reward for r in trainer._store.rollouts(run_id="greedy")}
    trained = list(trainer._store.rollouts(run_id="train"))
    assert len(greedy) == 2 and len(trained) == trainer.history[0].rollouts == 4
    for rollout in trained:
        values, _ = trainer._store.overlay(rollout.rollout_id, "advantages") or (None, {})
        assert values is not None and rollout.reward is not None
        assert values.tolist() == [rollout.reward - (greedy[rollout.group_id] or 0.0)] * 3


async def test_a_shorter_horizon_at_first(make_trainer: MakeTrainer) -> None:
    trainer = await make_trainer(replace(CONFIG, horizon={"turns": [1, 3], "steps_per_stage": 1}))
    await trainer.train(ignore)
    assert [r.turns for r in trainer.history] == [1.0, 3.0]


async def test_checkpoints_follow_the_steps(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = await make_trainer()
    with pytest.raises(CheckpointError, match="call train"):
        _ = trainer.checkpoint
    assert read_history(tmp_path / "run") == []
    await trainer.train(ignore)
    assert trainer.checkpoint.name == "000002"
    assert read_history(tmp_path / "run") == trainer.history
    assert same(Policy.load(trainer.checkpoint).weights(), weights(trainer))


async def test_a_finished_run_has_nothing_to_do(make_trainer: MakeTrainer) -> None:
    trainer = await make_trainer()
    await trainer.train(ignore)
    done = weights(trainer)
    await trainer.train(ignore)
    assert trainer.step == 2 and same(weights(trainer), done)


async def test_an_error_in_between_is_got_over_by_calling_again(make_trainer: MakeTrainer) -> None:
    trainer = await make_trainer(replace(CONFIG, steps=3))

    async def fail(result: StepResult) -> None:
        raise LookupError("no screen")

    for expected in (1, 2):
        with pytest.raises(LookupError):
            await trainer.train(fail)
        assert trainer.step == expected
    await trainer.train(ignore)
    ids = trainer._store.ids()
    assert len(ids) == len(set(ids)) == 24
    drawn = [t.rollout.task_id for t in trainer._store]
    assert len(set(drawn)) == 6, "each step took the next tasks"


async def test_more_groups_than_tasks(make_trainer: MakeTrainer, parity_tasks: MakeTasks) -> None:
    """A task that comes twice in one step makes two groups."""
    trainer = await make_trainer(replace(CONFIG, steps=1, groups_per_step=3), tasks=parity_tasks(2))
    await trainer.train(ignore)
    assert len({t.rollout.group_id for t in trainer._store}) == 3
    assert len(trainer._store) == 12


async def test_failed_rollouts_stay_out_of_the_update(
    make_trainer: MakeTrainer, parity_tasks: MakeTasks
) -> None:
    broken = parity_tasks(1, broken=True)[0].model_copy(update={"id": "broken"})
    trainer = await make_trainer(
        replace(CONFIG, steps=1, groups_per_step=2), tasks=TaskSet("half", [broken, parity_tasks(1)[0]])
    )
    await trainer.train(ignore)
    [result] = trainer.history
    assert (result.rollouts, result.failed) == (8, 4)
    values, _ = trainer._store.overlay("train/000000/broken/0", "advantages") or (None, None)
    assert values is not None and not values.any()


async def test_a_run_continues_where_it_was(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    """Stopped after a step, a new trainer goes on with the same tasks, weights and history."""
    first = await make_trainer(replace(CONFIG, steps=1), run_dir=tmp_path / "a")
    await first.train(ignore)
    first._store.close()
    second = await make_trainer(replace(CONFIG, steps=2), run_dir=tmp_path / "a")
    assert second.resume()
    assert second.history == first.history
    assert same(weights(first), weights(second))
    await second.train(ignore)
    assert [r.step for r in second.history] == [1, 2]
    assert len(second._store) == 16
    assert len({t.rollout.task_id for t in second._store}) == 4


async def test_history_of_another_version(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    trainer = await make_trainer(replace(CONFIG, steps=1))
    await trainer.train(ignore)
    state = trainer.checkpoint / "state.json"
    state.write_bytes(state.read_bytes().replace(b'"kl"', b'"divergence"'))
    with pytest.raises(CheckpointError, match="written by another version"):
        trainer.resume()
    assert Checkpoints(tmp_path / "run" / "checkpoints").latest() == trainer.checkpoint
