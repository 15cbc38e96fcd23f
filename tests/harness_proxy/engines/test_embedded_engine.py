"""The embedded engine: batching changes no reply, weights change between tokens, nothing hangs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from palestra.harness_proxy.engines.base import (
    EngineError,
    EngineUnavailableError,
    Generation,
    InvalidRequestError,
    PromptTooLongError,
)
from palestra.harness_proxy.engines.embedded.batch import Joining, Outcome
from palestra.harness_proxy.engines.embedded.cache import KeyValueCache
from palestra.harness_proxy.engines.embedded.engine import TorchEngine
from palestra.harness_proxy.engines.embedded.qwen3 import Qwen3, rotary_table
from palestra.harness_proxy.engines.embedded.testing import TINY, random_weights
from palestra.trajectories.model import Sampling

MakeEngine = Callable[..., TorchEngine]


def prompts(n: int, seed: int = 0, low: int = 3, high: int = 60) -> list[list[int]]:
    """Ragged prompts, half of which start alike."""
    rng = np.random.default_rng(seed)
    common = rng.integers(0, 97, 40).tolist()
    return [
        (common if k % 2 else []) + rng.integers(0, 97, int(rng.integers(low, high))).tolist()
        for k in range(n)
    ]


def logprobs_of(ids: Sequence[int], prompt_tokens: int, seed: int = 0) -> torch.Tensor:
    """Untempered log-probabilities (reply, vocabulary), computed at once by a forward pass of its own."""
    model = Qwen3(TINY, random_weights(seed=seed), "cpu")
    cache = KeyValueCache(2, 1, 2, 8, len(ids), torch.device("cpu"))
    rotary = rotary_table(TINY, len(ids), "cpu")
    rows = []
    with torch.inference_mode():
        for end in range(prompt_tokens, len(ids)):
            positions = torch.arange(end).unsqueeze(0)
            tokens = torch.tensor([list(ids[:end])])
            last = torch.tensor([end - 1])
            rows.append(model.forward(tokens, positions, last, cache.rows(0, 1, end), rotary)[0])
    return torch.stack(rows).log_softmax(-1)


def assert_is_what_the_model_says(prompt: list[int], reply: Generation, seed: int = 0) -> None:
    expected = logprobs_of([*prompt, *reply.token_ids], len(prompt), seed)
    chosen = expected.gather(1, torch.tensor(reply.token_ids).unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(torch.tensor(reply.logprobs), chosen, atol=2e-5, rtol=0)


def watch_tails(engine: TorchEngine) -> list[int]:
    """How many prompt tokens each request had computed, as they join."""
    tails: list[int] = []
    join = engine._batch.join

    def watched(joining: Sequence[Joining]) -> list[Outcome]:
        tails.extend(new.tail_tokens for new in joining)
        return join(joining)

    engine._batch.join = watched  # type: ignore[method-assign]
    return tails


async def test_a_crowd_of_ragged_requests_each_get_their_own_reply(make_engine: MakeEngine) -> None:
    """More requests than rows, ending at different times, so that rows are moved while they run."""
    engine = make_engine(max_batch=5)
    crowd = prompts(23)
    replies = await asyncio.gather(
        *(engine.generate(prompt, Sampling(max_tokens=1 + k % 9, seed=k)) for k, prompt in enumerate(crowd))
    )
    for k, (prompt, reply) in enumerate(zip(crowd, replies, strict=True)):
        assert len(reply.token_ids) == 1 + k % 9
        assert_is_what_the_model_says(prompt, reply)


async def test_the_same_seed_draws_the_same_in_any_company(make_engine: MakeEngine) -> None:
    alone, crowded = make_engine(max_batch=1, prefix_cache_mib=0), make_engine(max_batch=8)
    crowd = prompts(16, seed=5)
    sampling = [Sampling(max_tokens=8, seed=k, temperature=0.5 + k / 16, top_k=20) for k in range(16)]
    one_by_one = [await alone.generate(p, s) for p, s in zip(crowd, sampling, strict=True)]
    together = await asyncio.gather(
        *(crowded.generate(p, s) for p, s in reversed(list(zip(crowd, sampling, strict=True))))
    )
    for a, b in zip(one_by_one, reversed(together), strict=True):
        assert a.token_ids == b.token_ids
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)


async def test_deterministic_bits_do_not_depend_on_company_or_order(make_engine: MakeEngine) -> None:
    crowd = prompts(12, seed=2)
    sampling = [Sampling(max_tokens=10, seed=k, temperature=0.9) for k in range(12)]
    fresh = [
        await make_engine(deterministic=True).generate(p, s)
        for p, s in list(zip(crowd, sampling, strict=True))[:3]
    ]
    used = make_engine(deterministic=True)
    forward = await asyncio.gather(
        *(used.generate(p, s, session="x") for p, s in zip(crowd, sampling, strict=True))
    )
    backward = await asyncio.gather(
        *(used.generate(p, s) for p, s in reversed(list(zip(crowd, sampling, strict=True))))
    )
    assert forward == list(reversed(backward))
    assert forward[:3] == fresh


async def test_deterministic_bits_survive_a_round_of_other_weights(make_engine: MakeEngine) -> None:
    engine = make_engine(deterministic=True)
    [prompt], sampling = prompts(1), Sampling(max_tokens=10, seed=1)
    before = await engine.generate(prompt, sampling)
    await engine.update_weights(random_weights(seed=1), 1)
    other = await engine.generate(prompt, sampling)
    await engine.update_weights(random_weights(), 2)
    after = await engine.generate(prompt, sampling)
    assert other.logprobs != before.logprobs
    assert (after.token_ids, after.logprobs) == (before.token_ids, before.logprobs)
    assert after.versions == ((0, 2),)


async def test_turns_of_a_session_reuse_and_say_the_same(make_engine: MakeEngine) -> None:
    engine = make_engine()
    [ids] = prompts(1, low=40)
    computed = watch_tails(engine)
    for turn in range(4):
        reply = await engine.generate(ids, Sampling(max_tokens=6, seed=turn), session="s")
        assert_is_what_the_model_says(ids, reply)
        ids = ids + reply.token_ids + [turn, 5, 6]
    assert computed[1:] == [4, 4, 4]  # the last sampled token, never fed before, and the three new ones


async def test_a_group_computes_its_common_prompt_once(make_engine: MakeEngine) -> None:
    engine = make_engine()
    [prompt] = prompts(1, low=59)
    computed = watch_tails(engine)
    replies = await asyncio.gather(
        *(engine.generate(prompt, Sampling(max_tokens=5, seed=k), session=f"{k}") for k in range(8))
    )
    assert sorted(computed) == [1] * 7 + [len(prompt)]
    for reply in replies:
        assert_is_what_the_model_says(prompt, reply)


async def test_other_weights_in_mid_reply(make_engine: MakeEngine) -> None:
    """Spans name the version that each token was sampled with; mixed keys and values are not reused later."""
    engine = make_engine(version=4)
    [prompt] = prompts(1, low=40)
    running = asyncio.create_task(engine.generate(prompt, Sampling(max_tokens=200, seed=1), session="s"))
    while not engine._batch.requests:
        await asyncio.sleep(0)
    await engine.update_weights(random_weights(seed=1), 9)
    assert engine.policy_version == 9
    reply = await running
    (start, old), (switch, new) = reply.versions
    assert (start, old, new) == (0, 4, 9)
    assert 1 <= switch < 200
    whole = [*prompt, *reply.token_ids[:switch]]
    assert_is_what_the_model_says(
        prompt, Generation(reply.token_ids[:switch], reply.logprobs[:switch], "length")
    )
    again = await engine.generate(whole, Sampling(max_tokens=5, seed=1), session="s")
    assert_is_what_the_model_says(whole, again, seed=1)
    assert again.versions == ((0, 9),)


async def test_keys_and_values_of_older_weights_are_not_reused(make_engine: MakeEngine) -> None:
    engine = make_engine()
    [prompt] = prompts(1, low=50)
    await engine.generate(prompt, Sampling(max_tokens=5, seed=1), session="s")
    await engine.update_weights(random_weights(seed=1), 1)
    reply = await engine.generate(prompt, Sampling(max_tokens=5, seed=1), session="s")
    assert_is_what_the_model_says(prompt, reply, seed=1)


async def test_a_refused_update_changes_nothing(make_engine: MakeEngine) -> None:
    engine = make_engine(version=3)
    with pytest.raises(ValueError, match="missing"):
        await engine.update_weights({}, 4)
    assert engine.policy_version == 3
    assert (await engine.generate([1], Sampling(max_tokens=1))).versions == ((0, 3),)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_stop_token_ends_the_reply_and_is_part_of_it(engine: TorchEngine, temperature: float) -> None:
    free = await engine.generate([5, 6], Sampling(max_tokens=30, seed=2, temperature=temperature))
    stop = free.token_ids[4]
    sampling = Sampling(max_tokens=30, seed=2, temperature=temperature, stop_token_ids=(96, stop, 95))
    reply = await engine.generate([5, 6], sampling)
    first = next(k for k, token in enumerate(free.token_ids) if token in (96, stop, 95))
    assert reply.token_ids == free.token_ids[: first + 1]
    assert (reply.finish_reason, free.finish_reason) == ("stop", "length")


async def test_log_probabilities_are_those_of_the_processed_distribution(engine: TorchEngine) -> None:
    sampling = Sampling(max_tokens=12, seed=3, temperature=0.7, top_k=5)
    reply = await engine.generate([5, 6, 7], sampling)
    raw = logprobs_of([5, 6, 7, *reply.token_ids], 3)
    kept = (raw / 0.7).topk(5, -1)
    expected = kept.values.log_softmax(-1)
    for k, token in enumerate(reply.token_ids):
        [position] = (kept.indices[k] == token).nonzero().flatten().tolist()
        assert reply.logprobs[k] == pytest.approx(expected[k, position].item(), abs=2e-5)


async def test_rows_with_different_parameters_do_not_mix(engine: TorchEngine) -> None:
    kinds = [
        Sampling(max_tokens=6, temperature=0),
        Sampling(max_tokens=6, seed=1),
        Sampling(max_tokens=6, seed=1, temperature=2.0),
        Sampling(max_tokens=6, seed=1, top_k=1),
        Sampling(max_tokens=6, seed=1, top_p=0.3),
    ]
    alone = [await engine.generate([9, 8, 7], sampling) for sampling in kinds]
    together = await asyncio.gather(*(engine.generate([9, 8, 7], sampling) for sampling in kinds))
    for a, b in zip(alone, together, strict=True):
        assert a.token_ids == b.token_ids
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=2e-5)
    assert together[3].token_ids == together[0].token_ids
    assert together[3].logprobs == [0.0] * 6


async def test_the_context_window_cuts_the_reply_and_refuses_the_prompt(make_engine: MakeEngine) -> None:
    engine = make_engine(context_tokens=20)
    reply = await engine.generate([1] * 17, Sampling(max_tokens=50, seed=0))
    assert (len(reply.token_ids), reply.finish_reason) == (3, "length")
    assert len((await engine.generate([1] * 19, Sampling(max_tokens=50, seed=0))).token_ids) == 1
    with pytest.raises(PromptTooLongError, match="20 tokens, the prompt has 20"):
        await engine.generate([1] * 20, Sampling())


@pytest.mark.parametrize("prompt", [[], [97], [-1], [0, 10**12]])
async def test_ids_outside_the_vocabulary_are_refused(engine: TorchEngine, prompt: list[int]) -> None:
    with pytest.raises(InvalidRequestError, match="token ids from 0 to 96"):
        await engine.generate(prompt, Sampling())
    assert (await engine.generate([0, 96], Sampling(max_tokens=1))).finish_reason == "length"


@pytest.mark.parametrize(
    "bad",
    [{"temperature": -1.0}, {"temperature": float("nan")}, {"top_p": 0.0}, {"top_k": -1}, {"max_tokens": 0}],
)
async def test_impossible_sampling_is_refused(engine: TorchEngine, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(bad))):
        await engine.generate([1], Sampling(**bad))


async def test_a_cancelled_request_gives_its_row_back(make_engine: MakeEngine) -> None:
    engine = make_engine(max_batch=2)
    endless = [asyncio.create_task(engine.generate([k], Sampling(max_tokens=250, seed=k))) for k in range(6)]
    while len(engine._batch.requests) < 2:
        await asyncio.sleep(0)
    for task in endless:
        task.cancel()
    await asyncio.gather(*endless, return_exceptions=True)
    reply = await engine.generate([3, 4], Sampling(max_tokens=4, seed=1))
    assert_is_what_the_model_says([3, 4], reply)
    assert not engine._batch.requests
    assert not engine._waiting


async def test_cancelling_one_of_a_crowd_leaves_the_others_right(make_engine: MakeEngine) -> None:
    engine = make_engine()
    crowd = prompts(8, seed=9)
    tasks = [
        asyncio.create_task(engine.generate(p, Sampling(max_tokens=100, seed=k))) for k, p in enumerate(crowd)
    ]
    while len(engine._batch.requests) < 8:
        await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[5].cancel()
    replies = await asyncio.gather(*tasks, return_exceptions=True)
    for k, (prompt, reply) in enumerate(zip(crowd, replies, strict=True)):
        if k not in (0, 5):
            assert isinstance(reply, Generation)
            assert_is_what_the_model_says(prompt, reply)


async def test_pause_stops_and_resume_goes_on(engine: TorchEngine) -> None:
    await engine.pause()
    waiting = asyncio.create_task(engine.generate([1], Sampling(max_tokens=3, seed=0)))
    done, _ = await asyncio.wait([waiting], timeout=0.05)
    assert not done
    with pytest.raises(EngineError, match="resume"):
        await engine.drain()
    await engine.update_weights(random_weights(seed=1), 1)
    await engine.resume()
    await engine.drain()
    assert waiting.done()
    assert (await waiting).versions == ((0, 1),)
    await engine.drain()


async def test_broken_weights_are_an_error_and_poison_nobody(engine: TorchEngine) -> None:
    broken = random_weights()
    broken["model.layers.1.mlp.down_proj.weight"][:] = float("nan")
    await engine.update_weights(broken, 1)
    replies = await asyncio.gather(
        *(engine.generate(p, Sampling(max_tokens=9, seed=0)) for p in prompts(6)), return_exceptions=True
    )
    assert all(isinstance(reply, EngineError) and "version 1" in str(reply) for reply in replies)
    await engine.update_weights(random_weights(), 2)
    for prompt in prompts(6):
        assert_is_what_the_model_says(prompt, await engine.generate(prompt, Sampling(max_tokens=9, seed=0)))


async def test_weights_that_break_in_mid_reply_poison_nobody(engine: TorchEngine) -> None:
    tasks = [
        asyncio.create_task(engine.generate(p, Sampling(max_tokens=150, seed=0), session=f"{k}"))
        for k, p in enumerate(prompts(4))
    ]
    while len(engine._batch.requests) < 4:
        await asyncio.sleep(0)
    broken = random_weights()
    broken["model.layers.0.self_attn.k_proj.weight"][:] = float("inf")
    await engine.update_weights(broken, 1)
    replies = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(reply, EngineError) for reply in replies)
    await engine.update_weights(random_weights(), 2)
    for k, prompt in enumerate(prompts(4)):
        reply = await engine.generate(prompt, Sampling(max_tokens=9, seed=0), session=f"{k}")
        assert_is_what_the_model_says(prompt, reply)


async def test_when_the_thread_dies_everybody_hears_of_it(make_engine: MakeEngine) -> None:
    engine = make_engine(max_batch=2)

    def dies() -> None:
        raise MemoryError("no memory left")

    engine._batch.step = dies  # type: ignore[method-assign, assignment]
    replies = await asyncio.gather(
        *(engine.generate([k], Sampling(max_tokens=9)) for k in range(5)), return_exceptions=True
    )
    later = await asyncio.gather(
        engine.generate([1], Sampling()),
        engine.pause(),
        engine.probe(),
        engine.update_weights(random_weights(), 1),
        return_exceptions=True,
    )
    for reply in [*replies, *later]:
        assert isinstance(reply, EngineUnavailableError)
        assert isinstance(reply.__cause__, MemoryError)
    await engine.drain()
    await engine.aclose()


async def test_closing_tells_who_waits(make_engine: MakeEngine) -> None:
    engine = make_engine(max_batch=2)
    tasks = [asyncio.create_task(engine.generate([k], Sampling(max_tokens=250))) for k in range(5)]
    while not engine._batch.requests:
        await asyncio.sleep(0)
    await engine.aclose()
    await engine.aclose()
    for reply in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(reply, EngineUnavailableError)
    with pytest.raises(EngineUnavailableError, match="closed"):
        await engine.generate([1], Sampling())


async def test_closing_while_paused_does_not_hang(engine: TorchEngine) -> None:
    await engine.pause()
    task = asyncio.create_task(engine.generate([1], Sampling()))
    await asyncio.sleep(0)
    await engine.aclose()
    with pytest.raises(EngineUnavailableError):
        await task


async def test_the_cache_grows_while_sequences_run(make_engine: MakeEngine) -> None:
    config = replace(TINY, max_position_embeddings=1_200)
    engine = TorchEngine(config, random_weights())
    long_prompt = np.random.default_rng(0).integers(0, 97, 505).tolist()
    sampling = Sampling(max_tokens=20, seed=0)
    running = asyncio.create_task(engine.generate([1, 2, 3], Sampling(max_tokens=600, seed=1)))
    reply = await engine.generate(long_prompt, sampling)
    await running
    fixed = TorchEngine(config, random_weights(), deterministic=True)
    expected = await fixed.generate(long_prompt, sampling)
    assert reply.token_ids == expected.token_ids
    np.testing.assert_allclose(reply.logprobs, expected.logprobs, atol=1e-4)
    await engine.aclose()
    await fixed.aclose()


async def test_probe_says_what_the_engine_is(make_engine: MakeEngine) -> None:
    found = await make_engine(model_name="tiny", context_tokens=100).probe()
    assert (found.model, found.capture_level, found.logprob_semantics) == ("tiny", "tokens", "processed")
    assert found.context_tokens == 100
