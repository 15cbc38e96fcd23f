"""The check finds what is wrong: a history that changes, a file that is missing, a session that never ends."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from palestra.harness_proxy.sessions import Recording
from palestra.rollouts.harnesses.check import Verdict, audit, check
from palestra.rollouts.harnesses.recipes import Address, Beside, HarnessRecipe, Launch
from palestra.rollouts.harnesses.recipes.install import Install
from palestra.trajectories.model import BoolArray, FloatArray, IntArray, Message, Node

AGENT = """
import httpx, json, os, subprocess, sys
tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
history = [{"role": "user", "content": sys.argv[1]}]
for turn in range(99):
    body = {"model": "any", "messages": history, "tools": tools}
    head = {"authorization": "Bearer " + os.environ["KEY"]}
    reply = httpx.post(os.environ["URL"] + "/v1/chat/completions", json=body, headers=head, timeout=60)
    history.append(reply.raise_for_status().json()["choices"][0]["message"])
    SPOIL
    if not history[-1].get("tool_calls"):
        break
    for call in history[-1]["tool_calls"]:
        command = json.loads(call["function"]["arguments"])["command"]
        ran = subprocess.run(command, shell=True, capture_output=True, text=True)
        history.append({"role": "tool", "tool_call_id": call["id"], "content": ran.stdout})
print(history[-1]["content"])
"""


class Agent(HarnessRecipe):
    """A good agent, but for a line."""

    name: ClassVar[str] = "agent"
    dialects = ("chat",)
    install: ClassVar[Install] = Beside("httpx")
    shell: ClassVar[str] = "bash"

    def __init__(self, line: str) -> None:
        self._source = AGENT.replace("SPOIL", line)

    def launch(self, program: str, prompt: str, model: Address) -> Launch:
        return Launch((program, "-c", self._source, prompt), {"URL": model.root_url, "KEY": model.key})


async def verdict(line: str) -> Verdict:
    return await check(Agent(line), isolated=False)


async def test_a_faithful_harness_has_no_faults() -> None:
    found = await verdict("pass")
    assert found.good and found.answer == "There are 42."
    assert (found.audit.calls, found.audit.branches, found.audit.mismatches) == (4, 1, 0)


async def test_a_history_that_is_written_anew_is_a_fork() -> None:
    """It is recorded all the same, each token once, and the drift is named."""
    found = await verdict("history[0]['content'] += '!' if turn == 2 else ''")
    assert found.faults == ("the main thread has 2 branches ({'message': 1})",)
    assert found.audit.recorded == found.audit.sampled


async def test_a_harness_that_does_nothing_is_found_out() -> None:
    found = await verdict("history[-1].pop('tool_calls', None)")
    assert "made.txt was not written" in found.faults
    assert "1 calls, the script has at least 4 turns" in found.faults


async def test_a_crash_is_a_fault() -> None:
    found = await verdict("turn == 1 and sys.exit('tired')")
    assert any("exit code 1: tired" in fault for fault in found.faults)


def test_an_account_that_differs_in_one_token_is_a_mismatch() -> None:
    """Of a node that no call owns, too."""
    node = Node(0, None, Message("assistant", "x"), *_arrays())
    empty = Recording((node,), (), {}, (), (), None)
    found = audit(empty, [([1, 2], [3])])
    assert (found.mismatches, found.sampled, found.recorded) == (1, 1, 2)


def _arrays() -> tuple[IntArray, BoolArray, FloatArray]:
    return np.array([7, 8], np.int32), np.array([True, True]), np.zeros(2, np.float32)
