"""What stops a training run, what it gets over, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from palestra.harness_proxy.engines.base import EngineUnavailableError
from palestra.harness_proxy.engines.embedded.engine import TorchEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.rollouts.local import local
from palestra.tasks.task import TaskSet
from palestra.training.errors import (
    AllFailedError,
    ConfigError,
    DivergedError,
    MissingColumnError,
    OutOfMemoryError,
    UnfaithfulError,
    VersionError,
)
from palestra.training.policy import Policy
from palestra.training.trainer import Trainer
from palestra.trajectories.store import Store
from tiny_training import CONFIG, MakeTrainer, ignore, same, weights

MakeTasks = Callable[..., TaskSet]


class TestRefusals:
    async def test_an_engine_with_other_weights(self, make_trainer: MakeTrainer) -> None:
        trainer = await make_trainer()
        engine = trainer._engine
        before = weights(trainer)

        class Careless:
            """Serves something else than it was given."""

            async def update_weights(self, given: Any, version: int) -> None:
                await engine.update_weights({n: v * 1.05 for n, v in given.items()}, version)

        trainer._engine = Careless()  # type: ignore[assignment]
        with pytest.raises(UnfaithfulError, match="do not hold the same weights"):
            await trainer.train(ignore)
        assert trainer.step == 0
        assert same(weights(trainer), before)

    async def test_an_unfaithful_second_batch_is_seen_before_the_first_update(
        self, make_trainer: MakeTrainer
    ) -> None:
        trainer = await make_trainer(replace(CONFIG, steps=1, updates_per_step=2))
        before = weights(trainer)
        cut = trainer._batches

        def tampered(*args: Any) -> Any:
            batches = cut(*args)
            batches[1].logprobs[batches[1].loss_mask] -= 1.0
            return batches

        trainer._batches = tampered  # type: ignore[method-assign, assignment]
        with pytest.raises(UnfaithfulError, match="differ by up to 1"):
            await trainer.train(ignore)
        assert same(weights(trainer), before)

    @pytest.mark.parametrize("what", ["advantages", "logprobs"])
    async def test_numbers_that_are_not_finite(self, make_trainer: MakeTrainer, what: str) -> None:
        """Nothing is updated, and no gradient of the failed step is left over for the next."""
        trainer = await make_trainer(replace(CONFIG, steps=1, token_budget=1))
        before = weights(trainer)
        cut = trainer._batches

        def tampered(*args: Any) -> Any:
            [batch] = cut(*args)
            getattr(batch, what)[np.flatnonzero(batch.loss_mask)[-1]] = float("nan")
            return [batch]

        trainer._batches = tampered  # type: ignore[method-assign, assignment]
        with pytest.raises(DivergedError, match="nothing was updated"):
            await trainer.train(ignore)
        assert same(weights(trainer), before)

        trainer._batches = cut  # type: ignore[method-assign]
        await trainer.train(ignore)
        other = await make_trainer(
            replace(CONFIG, steps=1, token_budget=1), run_dir=Path(trainer.checkpoint.parents[2] / "other")
        )
        await other.train(ignore)
        for name, value in weights(other).items():
            torch.testing.assert_close(weights(trainer)[name], value, rtol=0, atol=1e-4)

    async def test_no_rollout_with_a_reward(self, make_trainer: MakeTrainer, parity_tasks: MakeTasks) -> None:
        trainer = await make_trainer(tasks=parity_tasks(3, broken=True))
        before = weights(trainer)
        with pytest.raises(
            AllFailedError,
            match=r"step 1: none of 8 .* 8 of them failed at env in reset: .*no world for this task",
        ):
            await trainer.train(ignore)
        assert same(weights(trainer), before) and trainer.step == 0

    async def test_a_step_that_failed_as_a_whole_is_repeated_once_it_can_work(
        self, make_trainer: MakeTrainer, parity_tasks: MakeTasks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Failed rollouts are committed like others; the next call plays the step anew under other names."""
        trainer = await make_trainer(replace(CONFIG, steps=1))
        run = trainer.runner.run
        engine = trainer.runner._proxy.engine
        generate = engine.generate

        async def broken(*args: Any, **options: Any) -> Any:
            raise RuntimeError("the lights went out")

        assert isinstance(engine, TorchEngine)
        engine.generate = broken  # type: ignore[method-assign]
        for _ in range(2):
            with pytest.raises(AllFailedError, match="the lights went out"):
                await trainer.train(ignore)
        engine.generate = generate  # type: ignore[method-assign]
        await trainer.train(ignore)
        assert trainer.step == 1
        prefixes = {i.split("/")[1] for i in trainer._store.ids()}
        assert prefixes == {"000000", "000000.1", "000000.2"}
        assert trainer.history[0].failed == 0
        assert run == trainer.runner.run

    async def test_rollouts_without_what_the_estimator_needs(self, make_trainer: MakeTrainer) -> None:
        trainer = await make_trainer(replace(CONFIG, estimator="ui_s1"))
        before = weights(trainer)
        with pytest.raises(MissingColumnError, match="whether each action was the expert's.*web-offline"):
            await trainer.train(ignore)
        assert same(weights(trainer), before) and trainer.step == 0

    async def test_an_unknown_estimator(self, make_trainer: MakeTrainer) -> None:
        with pytest.raises(ValueError, match="estimator: there is no .magic.; there are grpo, gigpo"):
            await make_trainer(replace(CONFIG, estimator="magic"))

    @pytest.mark.parametrize("key", ["sampler", "replay", "loss", "correction", "proximal"])
    async def test_any_other_unknown_name(self, make_trainer: MakeTrainer, key: str) -> None:
        changes: dict[str, Any] = {key: "magic"}
        with pytest.raises(ConfigError, match=f"{key}: there is no 'magic'(; there are|, did you mean mis)"):
            await make_trainer(replace(CONFIG, **changes))


class TestFaults:
    """What breaks is recorded, got over, or refused; nothing is left out in silence."""

    async def test_a_micro_batch_that_does_not_fit_is_halved(self, make_trainer: MakeTrainer) -> None:
        config = replace(CONFIG, steps=1, token_budget=400)
        whole, short = [await make_trainer(config, name=name, deterministic=True) for name in ("a", "b")]
        computed, sizes = short.policy.logprobs, list[int]()

        def cramped(rows: Any) -> Any:
            sizes.append(rows.positions)
            if rows.positions > 200:
                raise torch.OutOfMemoryError("tried to allocate 20 MiB")
            return computed(rows)

        short.policy.logprobs = cramped  # type: ignore[method-assign, assignment]
        await whole.train(ignore)
        await short.train(ignore)
        assert sizes[0] > 200 >= max(sizes[1:])
        assert whole.history[0].token_budget == 400 and short.history[0].token_budget < 400
        for name, value in weights(whole).items():
            torch.testing.assert_close(weights(short)[name], value, rtol=0, atol=1e-4)

    @pytest.mark.parametrize(
        "changes", [{"token_budget": 1}, {"updates_per_step": 2}], ids=["single samples", "second update"]
    )
    async def test_where_halving_cannot_help_the_step_is_refused(
        self, make_trainer: MakeTrainer, changes: dict[str, Any]
    ) -> None:
        trainer = await make_trainer(replace(CONFIG, steps=1, **changes))
        computed, step = trainer.policy.logprobs, trainer._updater._optimizer.step
        cramped = ["token_budget" in changes]

        def logprobs(rows: Any) -> Any:
            if cramped[0]:
                raise torch.OutOfMemoryError("tried to allocate 20 MiB")
            return computed(rows)

        def then_cramped(scale: float = 1.0) -> None:
            step(scale)
            cramped[0] = True

        trainer.policy.logprobs = logprobs  # type: ignore[method-assign, assignment]
        trainer._updater._optimizer.step = then_cramped  # type: ignore[method-assign]
        with pytest.raises(OutOfMemoryError, match=r"tokens do not fit .*20 MiB.*token_budget lower"):
            await trainer.train(ignore)
        assert trainer.step == 0
        trainer.policy.logprobs, trainer._updater._optimizer.step = computed, step  # type: ignore[method-assign]
        await trainer.train(ignore)
        assert trainer.step == 1 and len(trainer._store) == 8

    async def test_a_reply_of_wrong_lengths_is_a_failed_rollout(self, make_trainer: MakeTrainer) -> None:
        """The recorder refuses it; the others are trained."""
        trainer = await make_trainer(replace(CONFIG, steps=1))
        engine: Any = trainer.runner._proxy.engine
        generate, cut = engine.generate, list[str]()

        async def short(prompt: Any, sampling: Any, *, session: str = "") -> Any:
            reply = await generate(prompt, sampling, session=session)
            if session in cut or not cut:
                cut.append(session)
                return replace(reply, logprobs=reply.logprobs[:-1])
            return reply

        engine.generate = short
        await trainer.train(ignore)
        failures = [r.failure for r in trainer._store.rollouts() if r.failure is not None]
        assert len(failures) == trainer.history[0].failed == 1
        assert "log-probabilities" in failures[0].message

    async def test_replies_of_another_version_are_refused(self, make_trainer: MakeTrainer) -> None:
        trainer = await make_trainer(replace(CONFIG, steps=1))
        before = weights(trainer)
        engine: Any = trainer.runner._proxy.engine
        generate = engine.generate

        async def foreign(prompt: Any, sampling: Any, *, session: str = "") -> Any:
            return replace(await generate(prompt, sampling, session=session), versions=((0, 7),))

        engine.generate = foreign
        with pytest.raises(VersionError, match=r"version 7, its step takes version 0"):
            await trainer.train(ignore)
        assert same(weights(trainer), before)

    async def test_an_engine_that_dies_ends_the_run_which_then_goes_on(
        self, make_trainer: MakeTrainer, model_dir: Path, parity_tasks: MakeTasks, tmp_path: Path
    ) -> None:
        """The rollouts that it took along are recorded as failures of the provider; no score is made up for them."""
        from palestra.harness_proxy.engines.embedded.process import ProcessEngine
        from palestra.rollouts.local import child_engine

        engine = await child_engine(model_dir)
        assert isinstance(engine, ProcessEngine)
        generate, calls = engine.generate, list[int]()

        async def dying(*args: Any, **options: Any) -> Any:
            calls.append(1)
            if len(calls) == 10:
                engine._process.kill()
            return await generate(*args, **options)

        engine.generate = dying  # type: ignore[method-assign]
        with Store.open(tmp_path / "run" / "store", write=True) as store:
            async with local(engine, Rendering.load(model_dir), store=store) as running:
                trainer = Trainer(
                    CONFIG, Policy.load(model_dir), engine, running.runner, store, parity_tasks(6),
                    tmp_path / "run", model_dir / "tokenizer.json",
                )  # fmt: skip
                with pytest.raises((AllFailedError, EngineUnavailableError), match="ended"):
                    await trainer.train(ignore)
            lost = [r.failure for r in store.rollouts() if r.failure is not None]
            assert lost and {f.boundary for f in lost} == {"provider"}
        second = await make_trainer()
        await second.train(ignore)
        assert second.step == 2
