"""What real harnesses do beside talking to the model: sub-agents, titles, summaries, carrying on, asking again.

Each habit is one session with the real program; the engine's replies depend on what is in the prompt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness_stand import Played, Stand
from palestra.harness_proxy.engines.base import EngineError, EngineUnavailableError
from palestra.harness_proxy.engines.scripted import Reply, ScriptedEngine
from palestra.rollouts.harnesses.check import CONTEXT_TOKENS, odd
from palestra.rollouts.harnesses.recipes import Address, Launch, find_recipe
from palestra.rollouts.harnesses.recipes.codex import Codex
from palestra.trajectories.graph import TokenGraph

ASKED = "How many are there?"
ORDER = "Look behind the curtain."
"""What a sub-agent is told."""


def only(name: str) -> pytest.MarkDecorator:
    return pytest.mark.xdist_group(f"harness-{name}")


def engine(stand: Stand, reply: Callable[[str], Reply]) -> ScriptedEngine:
    """Replies to the text of the prompt."""
    decode = stand.rendering.decode
    return ScriptedEngine(stand.rendering, lambda ids, _: reply(decode(ids)), context_tokens=CONTEXT_TOKENS)


def turns(prompt: str) -> int:
    """How often the assistant has spoken."""
    return prompt.count("<|im_start|>assistant\n") - 1


def branches(played: Played, role: str) -> int:
    graph = TokenGraph(played.recording.nodes)
    calls = [c for c in played.recording.calls if c.role == role]
    above = {n.node_id for c in calls for n in graph.path(c.node_id)[:-1]}
    return len({c.node_id for c in calls} - above)


# Sub-agents.

DELEGATES: dict[str, tuple[str, dict[str, Any]]] = {
    "claude-code": ("Agent", {"description": "look", "prompt": ORDER, "subagent_type": "general-purpose"}),
    "codex": ("multi_agent_v1__spawn_agent", {"message": ORDER}),
    "gemini-cli": ("invoke_agent", {"agent_name": "generalist", "prompt": ORDER}),
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=only(n)) for n in DELEGATES])
async def test_a_sub_agent_is_labelled_and_is_a_branch_of_its_own(name: str, stand: Stand) -> None:
    recipe = find_recipe(name)

    def reply(prompt: str) -> Reply:
        if ASKED not in prompt:
            if "complete_task" in prompt:  # how gemini's sub-agents end
                return odd(("complete_task", {"result": "A cat.", "response": "A cat."}))
            return odd(recipe.shell_use("echo meow")) if turns(prompt) == 0 else "A cat."
        if turns(prompt) == 0:
            return odd(DELEGATES[name])
        waits = name == "codex" and turns(prompt) == 1  # its sub-agents work beside it, and end with it
        return odd(recipe.shell_use("sleep 3")) if waits else "There are 42."

    played = (await stand.play(recipe, engine(stand, reply))).faithful()
    assert "subagent" in played.roles
    assert played.audit.branches == 1 and branches(played, "subagent") == 1
    assert recipe.answer(played.ends[0]).endswith("There are 42.")
    assert played.recording.failure is None


# Summaries.


class Forgetful(Codex):
    """With little room, so that it sums up early."""

    def launch(self, program: str, prompt: str, model: Address) -> Launch:
        launch = super().launch(program, prompt, model)
        head, tail = launch.argv[:2], launch.argv[2:]
        return replace(launch, argv=(*head, "-c", "model_auto_compact_token_limit=1000", *tail))


@only("codex")
async def test_a_summary_is_compaction_and_begins_a_new_branch(stand: Stand) -> None:
    recipe = Forgetful()

    def reply(prompt: str) -> Reply:
        if "CONTEXT CHECKPOINT COMPACTION" in prompt:
            return "We were counting."
        summed = "We were counting." in prompt
        return "There are 42." if summed else odd(recipe.shell_use("echo one"))

    played = (await stand.play(recipe, engine(stand, reply))).faithful()
    assert played.roles == ["agent", "compaction", "agent"]
    assert recipe.answer(played.ends[0]) == "There are 42."


# Replies that are cut off, calls that do not parse.


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=only(n)) for n in ("codex", "claude-code", "pi", "gemini-cli")]
)
async def test_a_reply_that_is_cut_off_is_no_failure(name: str, stand: Stand) -> None:
    """claude-code carries on in the same branch; the others end, codex with exit code 1."""

    def reply(prompt: str) -> Reply:
        return " ".join(map(str, range(400))) if turns(prompt) == 0 else "There are 42."

    played = (await stand.play(find_recipe(name), engine(stand, reply), max_tokens=100)).unbroken()
    finish = [c.finish_reason for c in played.recording.calls]
    assert finish == (["length", "stop"] if name == "claude-code" else ["length"])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=only(n)) for n in ("codex", "claude-code", "pi", "gemini-cli")]
)
async def test_mistakes_of_the_model_are_answered_by_the_harness(name: str, stand: Stand) -> None:
    """A tool that there is not, and arguments that do not fit; then a call that is no JSON, which is text."""
    recipe = find_recipe(name)
    script = [
        odd(("no_such_tool", {"x": 1})),
        odd((recipe.shell, {"wrong": [1.50, None]})),
        f'<tool_call>\n{{"name": "{recipe.shell}", "arguments": {{"x\n</tool_call>',
    ]
    played = (await stand.play(recipe, engine(stand, lambda prompt: script[turns(prompt)]))).unbroken()
    assert [c.parse_status for c in played.recording.calls] == ["ok", "ok", "malformed"]


# Errors.


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=only(n)) for n in ("codex", "claude-code", "pi", "gemini-cli")]
)
async def test_a_request_that_is_asked_again_is_sampled_once(name: str, stand: Stand) -> None:
    recipe = find_recipe(name)
    troubles: list[Reply] = [EngineUnavailableError("starting")]

    def reply(prompt: str) -> Reply:
        if turns(prompt) == 1 and troubles:
            return troubles.pop()
        return odd(recipe.shell_use("echo one")) if turns(prompt) == 0 else "There are 42."

    played = (await stand.play(recipe, engine(stand, reply))).unbroken()
    assert played.roles == ["agent", "agent"]
    assert not troubles


@pytest.mark.parametrize("name", [pytest.param(n, marks=only(n)) for n in ("codex", "claude-code", "pi")])
async def test_a_pause_for_new_weights_is_waited_for(name: str, stand: Stand) -> None:
    recipe = find_recipe(name)
    resuming: list[asyncio.Task[None]] = []

    def reply(prompt: str) -> Reply:
        if turns(prompt) > 0:
            return "There are 42."
        stand.proxies[-1].pause()
        resuming.append(asyncio.create_task(_resume_when_refused(stand)))
        return odd(recipe.shell_use("echo one"))

    played = (await stand.play(recipe, engine(stand, reply))).unbroken()
    assert played.roles == ["agent", "agent"]
    assert resuming[0].done()


async def _resume_when_refused(stand: Stand) -> None:
    while not any("weights are being updated" in f for f in stand.sessions[-1].recording().findings):
        await asyncio.sleep(0.02)
    stand.proxies[-1].resume()


@only("openai-sdk")
async def test_an_engine_that_fails_for_good_is_not_asked_again(stand: Stand) -> None:
    """The SDK obeys x-should-retry. The loop around it dies of the error, whose cause is the engine's."""
    asked: list[str] = []

    def reply(prompt: str) -> Reply:
        asked.append(prompt)
        return EngineError("it broke")

    played = await stand.play(find_recipe("openai-sdk"), engine(stand, reply))
    assert len(asked) == 1
    assert played.recording.failure is not None
    assert (played.recording.failure.boundary, played.recording.failure.message) == ("provider", "it broke")
