"""Trajectories to report on, with a tokenizer in which every UTF-8 byte is a token."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from palestra.trajectories.graph import Segment, TokenGraph
from palestra.trajectories.model import (
    Call,
    EnvStep,
    Message,
    Rollout,
    Sampling,
    Score,
    ToolCall,
    Trajectory,
)

Write = Callable[..., Trajectory]


def encode(text: str) -> list[int]:
    return list(text.encode("utf-8", errors="replace"))


def decode_bytes(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def _said(message: Message) -> str:
    return message.content + "".join(t.arguments for t in message.tool_calls)


class Recorder:
    """Writes a conversation as the proxy does: with each call the caller sends all that came before.

    A message is "<role>text\\n"; a reply is sampled without the closing newline, as chat templates have it.
    """

    def __init__(self) -> None:
        self.graph = TokenGraph()
        self.calls: list[Call] = []
        self.steps: list[EnvStep] = []

    def call(
        self, prompt: Sequence[Message], reply: Message, *, role: str = "agent", delivered: bool = True
    ) -> int:
        """Record a call and return its seq."""
        ids: list[int] = []
        segments = []
        for message in prompt:
            ids += encode(f"<{message.role}>{_said(message)}\n")
            segments.append(Segment(message, len(ids)))
        ids += encode("<assistant>")
        sampled = encode(_said(reply))
        logprobs = -np.linspace(0.0, 2.0, len(sampled), dtype=np.float32)
        prompt_ids = np.array(ids, np.int32)
        node = self.graph.commit(prompt_ids, segments, reply, np.array(sampled, np.int32), logprobs)
        seq = len(self.calls)
        self.calls.append(
            Call(
                seq=seq,
                dialect="chat",
                request_sha256="0" * 64,
                tools_sha256=None,
                prompt_mode="bridge",
                requested={},
                effective=Sampling(),
                logprob_semantics="processed",
                policy_version=0,
                finish_reason="stop",
                parse_status="ok",
                node_id=node,
                prompt_tokens=len(ids),
                started_s=0.0,
                duration_s=0.1,
                role=role,  # type: ignore[arg-type]
                delivered=delivered,
            )
        )
        return seq

    def step(
        self, call: int | None, tool_call_id: str | None, action: str, observation: str, *, valid: bool = True
    ) -> None:
        index = len(self.steps)
        self.steps.append(
            EnvStep(
                index, call, tool_call_id, action, observation, 0.0, False, False, f"s{index}", "d", valid
            )
        )

    def trajectory(self, score: Score | None = None) -> Trajectory:
        rollout = Rollout(
            "r1",
            "run",
            "g",
            "sql/1",
            0,
            0,
            "eval",
            "tool-loop",
            "0.1",
            "tokens",
            0,
            score or Score(1.0, True),
        )
        return Trajectory(rollout, tuple(self.graph.nodes), tuple(self.calls), tuple(self.steps))


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def decode() -> Callable[[Sequence[int]], str]:
    return decode_bytes


@pytest.fixture
def write() -> Write:
    """write(question, answer, arguments): one turn with one tool call and its step."""

    def written(question: str, answer: str, arguments: str = json.dumps({"sql": "SELECT 1"})) -> Trajectory:
        record = Recorder()
        reply = Message("assistant", answer, tool_calls=(ToolCall("c1", "query", arguments),))
        seq = record.call([Message("user", question)], reply)
        record.step(seq, "c1", arguments, f"result of {question}")
        return record.trajectory()

    return written
