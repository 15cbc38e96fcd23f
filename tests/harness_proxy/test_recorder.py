"""Prompts, forks, drifts, retries, budgets and failures, through the ASGI application with a scripted
engine."""

import asyncio
from typing import Any

import numpy as np
import pytest

from palestra.harness_proxy.engines.base import EngineError, EngineUnavailableError, PromptTooLongError
from palestra.harness_proxy.errors import CaptureError, ProxyStateError
from palestra.harness_proxy.rendering import Rendering
from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import Drift, Sampling

SYSTEM = {"role": "system", "content": "Be careful."}
USER = {"role": "user", "content": "How many users are there?"}
TOOLS = [{"type": "function", "function": {"name": "query", "parameters": {"type": "object"}}}]
QUERY = 'Let me look.\n<tool_call>\n{"name": "query", "arguments": {"sql":  "SELECT \\u00e9"}}\n</tool_call>'


def result(message: Any, content: str = "[[42]]") -> list[Any]:
    return [{"role": "tool", "tool_call_id": c["id"], "content": content} for c in message["tool_calls"]]


async def play(bench: Any, session: Any, turns: int, history: list[Any] | None = None) -> list[Any]:
    """A tool loop; returns the history after the last reply."""
    history = list(history or [SYSTEM, USER])
    for turn in range(turns):
        message = (await bench.ask(session, history, tools=TOOLS)).message
        history.append(message)
        if turn < turns - 1:
            history += result(message)
    return history


async def test_a_tool_conversation_is_one_branch(bench: Any) -> None:
    b = await bench([QUERY, QUERY, "There are 42."])
    session = b.open()
    history = await play(b, session, 3)
    assert history[-1]["content"] == "There are 42."
    recording = b.close(session)
    assert [c.prompt_mode for c in recording.calls] == ["render", "bridge", "bridge"]
    assert [c.parse_status for c in recording.calls] == ["ok", "ok", "text"]
    assert list(TokenGraph(recording.nodes).leaves()) == [recording.calls[-1].node_id]
    assert [n.message.role for n in recording.nodes] == [
        "system", "user", "assistant", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert recording.failure is None
    assert list(recording.tools.values()) == [tuple(TOOLS)]
    assert {c.tools_sha256 for c in recording.calls} == set(recording.tools)


async def test_tool_call_ids_and_header_name_the_call(bench: Any) -> None:
    b = await bench(["Hello.", QUERY + "\n" + QUERY])
    session = b.open()
    first = await b.ask(session, [USER])
    second = await b.ask(session, [USER, first.message, USER])
    assert (first.headers["x-palestra-call"], second.headers["x-palestra-call"]) == ("0", "1")
    ids = [c["id"] for c in second.message["tool_calls"]]
    assert [i.rsplit("_", 1)[0] for i in ids] == ["call_1_0", "call_1_1"]
    assert len(set(ids)) == 2


async def test_arguments_come_back_as_they_were_sampled(bench: Any) -> None:
    b = await bench([QUERY])
    message = (await b.ask(b.open(), [USER], tools=TOOLS)).message
    assert message["tool_calls"][0]["function"]["arguments"] == '{"sql":  "SELECT \\u00e9"}'


async def test_a_sample_of_the_same_body_is_a_sibling(bench: Any) -> None:
    b = await bench(["One.", "Two.", "Three."])
    session = b.open()
    first, second = [(await b.ask(session, [USER])).message for _ in range(2)]
    await b.ask(session, [USER, first, USER])
    recording = b.close(session)
    assert (first["content"], second["content"]) == ("One.", "Two.")
    nodes = [recording.nodes[c.node_id] for c in recording.calls]
    assert nodes[0].parent == nodes[1].parent
    assert nodes[0].node_id in [n.node_id for n in TokenGraph(recording.nodes).path(nodes[2].node_id)]
    assert [c.retry_of for c in recording.calls] == [None, 0, None]


async def test_of_twins_the_one_that_is_continued_is_continued(bench: Any) -> None:
    b = await bench([QUERY, QUERY, "Done."])
    session = b.open()
    first, _ = [(await b.ask(session, [USER], tools=TOOLS)).message for _ in range(2)]
    await b.ask(session, [USER, first, *result(first)], tools=TOOLS)
    recording = b.close(session)
    nodes = [c.node_id for c in recording.calls]
    assert nodes[0] in [n.node_id for n in TokenGraph(recording.nodes).path(nodes[2])]


async def test_subagents_fork_without_a_drift(bench: Any) -> None:
    b = await bench(["Main."] * 2 + ["Sub."])
    session = b.open()
    main = (await b.ask(session, [SYSTEM, USER])).message
    await b.ask(session, [{"role": "system", "content": "You are a sub-agent."}, USER])
    await b.ask(session, [SYSTEM, USER, main, USER])
    recording = b.close(session)
    assert [c.drift for c in recording.calls] == [None, None, None]
    assert [c.prompt_mode for c in recording.calls] == ["render", "render", "bridge"]


@pytest.mark.parametrize(
    ("change", "drift"),
    [
        (lambda h: [{**h[0], "content": "Be bold. It is 10:05."}, *h[1:]], Drift("system", 0)),
        (lambda h: [h[0], {**h[1], "content": "How many?"}, *h[2:]], Drift("message", 1)),
        (lambda h: [*h[:3], {**h[3], "content": "[[41]]"}, *h[4:]], Drift("message", 3)),
        (lambda h: [*h[:4], {"role": "assistant", "content": "I never said this."}], Drift("message", 4)),
        (lambda h: [*h[:2], *h[4:]], Drift("message", 2)),
    ],
    ids=["system", "user", "tool result", "reply", "dropped turn"],
)
async def test_a_changed_history_forks_and_says_where(bench: Any, change: Any, drift: Drift) -> None:
    b = await bench([QUERY, "There are 42.", "Again."])
    session = b.open()
    history = await play(b, session, 2)
    await b.ask(session, [*change(history), USER], tools=TOOLS)
    recording = b.close(session)
    assert recording.calls[2].drift == drift
    assert recording.calls[2].prompt_mode == "render"


async def test_changed_tools_are_a_drift(bench: Any) -> None:
    b = await bench([QUERY, "Again."])
    session = b.open()
    history = await play(b, session, 1)
    more = [*TOOLS, {"type": "function", "function": {"name": "more", "parameters": {}}}]
    await b.ask(session, [*history, *result(history[-1])], tools=more)
    assert b.close(session).calls[1].drift == Drift("tools", 0)


async def test_a_fork_is_continued_without_another_drift(bench: Any) -> None:
    b = await bench([QUERY, "One.", "Two.", "Three."])
    session = b.open()
    history = await play(b, session, 2)
    changed = [{**SYSTEM, "content": "Changed."}, *history[1:], USER]
    changed.append((await b.ask(session, changed, tools=TOOLS)).message)
    await b.ask(session, [*changed, USER], tools=TOOLS)
    calls = b.close(session).calls
    assert [c.prompt_mode for c in calls[2:]] == ["render", "bridge"]
    assert calls[3].drift is None


async def test_reasoning_that_the_template_drops_is_a_drift_of_tokens(bench: Any, model_dir: Any) -> None:
    thinking = Rendering.load(model_dir, enable_thinking=True)
    b = await bench(["<think>\nHm.\n</think>\n\nYes.", "<think>\nSo.\n</think>\n\nNo."], rendering=thinking)
    session = b.open()
    first = (await b.ask(session, [USER])).message
    assert (first["reasoning_content"], first["content"]) == ("Hm.", "Yes.")
    await b.ask(session, [USER, first, USER])
    call = b.close(session).calls[1]
    assert call.prompt_mode == "render"
    assert call.drift is not None and call.drift.kind == "tokens"


async def test_a_reply_cut_off_is_closed_and_continued(bench: Any) -> None:
    b = await bench([QUERY, "Done."])
    session = b.open()
    first = await b.ask(session, [USER], tools=TOOLS, max_tokens=20)
    assert first.json["choices"][0]["finish_reason"] == "length"
    await b.ask(session, [USER, first.message, USER], tools=TOOLS)
    recording = b.close(session)
    assert recording.calls[0].effective.max_tokens == 20
    assert recording.calls[0].parse_status == "malformed"
    assert recording.calls[1].prompt_mode == "bridge"


async def test_a_stop_token_in_the_middle_forks(bench: Any, rendering: Rendering) -> None:
    stop = rendering.stop_token_ids[0]
    b = await bench([[*rendering.encode("One."), stop, *rendering.encode("Two."), stop], "Three."])
    session = b.open()
    first = (await b.ask(session, [USER])).message
    await b.ask(session, [USER, first, USER])
    b.close(session)


async def test_an_engine_that_samples_nothing_failed(bench: Any) -> None:
    b = await bench([[]])
    session = b.open()
    assert (await b.ask(session, [USER])).status == 500
    recording = b.proxy.close(session)
    assert recording.calls == ()
    assert recording.failure is not None and recording.failure.boundary == "provider"


async def test_logprobs_and_token_ids_on_request(bench: Any, rendering: Rendering) -> None:
    b = await bench(["Hello."])
    answer = await b.ask(b.open(), [USER], logprobs=True, return_token_ids=True)
    choice = answer.json["choices"][0]
    generation = b.engine.calls[0].generation
    assert answer.json["prompt_token_ids"] == b.engine.calls[0].prompt_ids
    assert choice["token_ids"] == generation.token_ids
    assert [t["logprob"] for t in choice["logprobs"]["content"]] == generation.logprobs
    assert "".join(t["token"] for t in choice["logprobs"]["content"]) == "Hello.<|im_end|>"


async def test_sampling_is_the_sessions(bench: Any) -> None:
    b = await bench(["Hello."])
    session = b.open(sampling=Sampling(temperature=0.7, max_tokens=64, seed=3))
    asked = {"temperature": 0.1, "top_p": 0.5, "stop": ["x"], "tool_choice": "required", "max_tokens": 999}
    await b.ask(session, [USER], **asked)
    recording = b.close(session)
    call = recording.calls[0]
    assert call.requested == asked
    assert (call.effective.temperature, call.effective.top_p, call.effective.max_tokens) == (0.7, 1.0, 64)
    assert sum("was not applied" in f for f in recording.findings) == 2


async def test_seeds_depend_on_session_seed_and_call_alone(bench: Any) -> None:
    async def seeds(script: list[Any], turns: int) -> list[Any]:
        b = await bench(script)
        session = b.open(sampling=Sampling(seed=11, max_tokens=9))
        for turn in range(turns):
            await b.ask(session, [USER], user=str(turn))
        return [c.effective.seed for c in b.close(session).calls]

    plain = await seeds(["a", "b", "c"], 3)
    assert len(set(plain)) == 3
    assert await seeds(["a", EngineUnavailableError("busy"), "b", "c"], 4) == plain


async def test_a_retry_in_flight_is_one_sample(bench: Any) -> None:
    b = await bench(["Hello."] * 2, latency_s=0.02)
    session = b.open()
    asked = [b.ask(session, [USER]), b.ask(session, [USER], {"x-stainless-retry-count": "1"})]
    first, second = await asyncio.gather(*asked)
    assert first.body == second.body and first.headers == second.headers
    assert len(b.engine.calls) == len(b.close(session).calls) == 1


async def test_a_lost_reply_is_not_trained_and_given_again(bench: Any) -> None:
    b = await bench(["Hello.", "Never."])
    session, other = b.open(), b.open()
    body = b'{"messages": [{"role": "user", "content": "Hi"}]}'
    key = {"authorization": f"Bearer {session.key}"}
    assert (await b.raw(body, key, leave=True)).status == 0
    assert [c.delivered for c in session.recording().calls] == [False]
    assert (await b.raw(body, key)).message["content"] == "Hello."
    recording = b.close(session)
    assert [c.delivered for c in recording.calls] == [True]
    assert any("given again" in f for f in recording.findings)
    lost = {"authorization": f"Bearer {other.key}"}
    await b.raw(body, lost, leave=True)
    assert [c.delivered for c in b.close(other).calls] == [False]


async def test_a_declared_retry_of_a_delivered_reply_is_given_again(bench: Any) -> None:
    b = await bench(["Hello.", "Never."])
    session = b.open()
    await b.ask(session, [USER])
    again = await b.ask(session, [USER], {"x-stainless-retry-count": "1"})
    assert again.message["content"] == "Hello."
    assert len(b.close(session).calls) == 1


async def test_max_calls_ends_as_an_assistant_message_off_the_record(bench: Any) -> None:
    b = await bench([QUERY, "Never."])
    session = b.open(max_calls=1)
    history = await play(b, session, 1)
    for _ in range(2):
        answer = await b.ask(session, [*history, *result(history[-1])], tools=TOOLS)
        assert answer.headers["x-palestra-stop"] == "max_calls"
        assert "x-palestra-call" not in answer.headers
        assert answer.json["choices"][0]["finish_reason"] == "stop"
        assert answer.message["content"] and "tool_calls" not in answer.message
    recording = b.close(session)
    assert len(recording.calls) == 1
    assert recording.stops == ("max_calls",)
    assert recording.failure is None


@pytest.mark.parametrize(
    ("options", "engine", "why"),
    [({"max_path_tokens": 60}, {}, "max_path_tokens"), ({}, {"context_tokens": 60}, "context")],
)
async def test_a_path_never_grows_past_its_budget(bench: Any, options: Any, engine: Any, why: str) -> None:
    b = await bench(lambda prompt, session: "word " * 100, **engine)
    session = b.open(**options)
    history: list[Any] = [USER]
    for _ in range(3):
        answer = await b.ask(session, history)
        history += [answer.message, USER]
        if "x-palestra-stop" in answer.headers:
            break
    assert answer.headers["x-palestra-stop"] == why
    recording = b.close(session)
    graph = TokenGraph(recording.nodes)
    assert recording.calls and max(graph.path_length(c.node_id) for c in recording.calls) <= 60
    assert recording.stops == (why,)


async def test_an_unavailable_engine_is_503_and_forgiven_once_served(bench: Any) -> None:
    b = await bench([EngineUnavailableError("starting"), "Hello."])
    session = b.open()
    refused = await b.ask(session, [USER])
    assert refused.status == 503
    assert refused.headers["retry-after"] == "1"  # whole seconds, or codex does not ask again
    assert refused.headers["retry-after-ms"] == "10"
    assert session.recording().failure is not None
    assert (await b.ask(session, [USER])).status == 200
    recording = b.close(session)
    assert recording.failure is None
    assert any("starting" in f for f in recording.findings)


async def test_an_outage_is_over_though_the_body_came_back_with_other_metadata(bench: Any) -> None:
    """codex numbers its tries in client_metadata."""
    b = await bench([EngineUnavailableError("starting"), "Hello."])
    session = b.open()
    assert (await b.ask(session, [USER], client_metadata={"try": 1})).status == 503
    assert (await b.ask(session, [USER], client_metadata={"try": 2})).status == 200
    assert b.close(session).failure is None


async def test_an_outage_that_the_harness_gave_up_on_fails_the_rollout(bench: Any) -> None:
    b = await bench([EngineUnavailableError("lost"), "Other."])
    session = b.open()
    await b.ask(session, [USER])
    await b.ask(session, [SYSTEM, USER])
    failure = b.close(session).failure
    assert failure is not None and failure.boundary == "provider" and failure.retryable


async def test_an_engine_error_is_500_and_fails_the_rollout(bench: Any) -> None:
    b = await bench([EngineError("broken"), "Hello."])
    session = b.open()
    assert (await b.ask(session, [USER])).status == 500
    assert (await b.ask(session, [USER])).status == 200
    failure = b.close(session).failure
    assert failure is not None and (failure.boundary, failure.message) == ("provider", "broken")


async def test_an_unexpected_exception_is_500_and_stays_ours(
    bench: Any, caplog: pytest.LogCaptureFixture
) -> None:
    b = await bench([ZeroDivisionError("secret detail")])
    session = b.open()
    answer = await b.ask(session, [USER])
    assert answer.status == 500 and b"secret" not in answer.body
    failure = b.close(session).failure
    assert failure is not None and failure.boundary == "proxy" and "secret detail" in failure.message
    assert "failed inside the proxy" in caplog.text


async def test_engine_numbers_that_are_no_logprobs_fail_the_rollout(bench: Any) -> None:
    b = await bench(["Hello."])
    generate = b.engine.generate

    class Broken:
        probe, aclose = b.engine.probe, b.engine.aclose

        async def generate(self, *args: Any, **kwargs: Any) -> Any:
            generation = await generate(*args, **kwargs)
            generation.logprobs[0] = float("nan")
            return generation

    b.proxy._recorder._engine = Broken()
    session = b.open()
    assert (await b.ask(session, [USER])).status == 500
    recording = b.proxy.close(session)
    assert recording.calls == () and recording.nodes == ()
    assert recording.failure is not None and recording.failure.boundary == "provider"


async def test_a_prompt_too_long_for_the_engine_is_the_callers_400(bench: Any) -> None:
    b = await bench([PromptTooLongError(9000, 8192)])
    session = b.open()
    answer = await b.ask(session, [USER])
    assert answer.status == 400
    assert answer.json["error"]["code"] == "context_length_exceeded"
    assert "maximum context length is 8192 tokens" in answer.json["error"]["message"]
    assert b.close(session).failure is None


async def test_paused_is_429_and_calls_in_flight_go_on(bench: Any) -> None:
    b = await bench(["Hello."] * 3, latency_s=0.02)
    session = b.open()
    running = asyncio.create_task(b.ask(session, [USER]))
    await asyncio.sleep(0)
    b.proxy.pause()
    refused = await b.ask(session, [SYSTEM, USER])
    assert refused.status == 429 and "retry-after" in refused.headers
    assert not running.done()
    await b.proxy.drain()
    assert (await running).status == 200
    b.proxy.resume()
    assert (await b.ask(session, [SYSTEM, USER])).status == 200
    assert b.close(session).failure is None


async def test_being_paused_to_the_end_fails_the_rollout(bench: Any) -> None:
    b = await bench([])
    session = b.open()
    b.proxy.pause()
    await b.ask(session, [USER])
    failure = b.close(session).failure
    assert failure is not None and failure.retryable


async def test_closing_cancels_calls_in_flight(bench: Any) -> None:
    b = await bench(["Hello."], latency_s=60)
    session = b.open()
    asked = [asyncio.create_task(b.ask(session, [USER])) for _ in range(2)]
    await asyncio.sleep(0.01)
    recording = b.close(session)
    assert [a.status for a in await asyncio.gather(*asked)] == [401, 401]
    assert recording.calls == ()
    assert (await b.ask(session, [USER])).status == 401
    with pytest.raises(ProxyStateError, match="closed before"):
        b.proxy.close(session)


async def test_train_mode_needs_tokens(bench: Any) -> None:
    b = await bench([], capture_level="text")
    with pytest.raises(CaptureError, match="give text"):
        b.open()
    b.open(mode="eval")


async def test_versions_and_logprobs_are_the_engines(bench: Any) -> None:
    b = await bench(["Hello.", "Again."], version=3)
    session = b.open()
    await b.ask(session, [USER])
    b.engine.version = 4
    await b.ask(session, [USER])
    recording = b.close(session)
    assert [c.policy_version for c in recording.calls] == [3, 4]
    for call, seen in zip(recording.calls, b.engine.calls, strict=True):
        node = recording.nodes[call.node_id]
        np.testing.assert_array_equal(node.logprobs, np.array(seen.generation.logprobs, np.float32))
