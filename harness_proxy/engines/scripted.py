"""An engine that says what it is told to: for tests of harnesses, environments and of the proxy itself.

    engine = ScriptedEngine(rendering, ["Hello.", '<tool_call>\\n{"name": "run", "arguments":
    {}}\\n</tool_call>'])

Replies are texts, encoded and ended by the stop token, or lists of token ids, taken as they are. A script is
a sequence played per session (each session starts at its beginning), a mapping from session to sequence, or a
function of the prompt. An exception in a script is raised. Log-probabilities are a fixed function of the ids
before and of the id itself, so equal calls give equal numbers. What the engine was given is kept in `calls`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from palestra.harness_proxy.engines.base import Capability, EngineError, Generation, PromptTooLongError
from palestra.trajectories.model import CaptureLevel, Sampling

Reply = str | Sequence[int] | Exception
Script = Sequence[Reply] | Mapping[str, Sequence[Reply]] | Callable[[list[int], str], Reply]


class TextEncoder(Protocol):
    """What the engine needs of a tokenizer; `Rendering` has it."""

    stop_token_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """One call as the engine saw it, and what it gave; None where it raised."""

    session: str
    prompt_ids: list[int]
    sampling: Sampling
    generation: Generation | None


class ScriptedEngine:
    """Plays replies. An exhausted script raises EngineError."""

    def __init__(
        self,
        encoder: TextEncoder,
        replies: Script,
        *,
        latency_s: float = 0.0,
        context_tokens: int = 32_768,
        capture_level: CaptureLevel = "tokens",
        version: int = 0,
    ) -> None:
        self.calls: list[ScriptedCall] = []
        self.version = version
        self.latency_s = latency_s
        self._encoder = encoder
        self._replies = replies
        self._context_tokens = context_tokens
        self._capture_level = capture_level
        self._positions: defaultdict[str, int] = defaultdict(int)

    async def probe(self) -> Capability:
        """What the constructor was told to claim."""
        return Capability("scripted", self._capture_level, "processed", self._context_tokens)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str = ""
    ) -> Generation:
        """The next reply of the script, cut at `sampling.max_tokens`."""
        prompt = list(prompt_ids)
        version = self.version
        if self.latency_s:
            await asyncio.sleep(self.latency_s)
        if len(prompt) >= self._context_tokens:
            raise PromptTooLongError(len(prompt), self._context_tokens)
        reply = self._next(prompt, session)
        if isinstance(reply, Exception):
            self.calls.append(ScriptedCall(session, prompt, sampling, None))
            raise reply
        generation = self._generation(prompt, reply, sampling, version)
        self.calls.append(ScriptedCall(session, prompt, sampling, generation))
        return generation

    async def aclose(self) -> None:
        """Nothing to release."""

    def _next(self, prompt: list[int], session: str) -> Reply:
        if callable(self._replies):
            return self._replies(prompt, session)
        script = self._replies[session] if isinstance(self._replies, Mapping) else self._replies
        position = self._positions[session]
        if position >= len(script):
            raise EngineError(
                f"the script of session {session!r} has {len(script)} replies, and one more was asked"
            )
        self._positions[session] += 1
        return script[position]

    def _generation(
        self, prompt: list[int], reply: str | Sequence[int], sampling: Sampling, version: int
    ) -> Generation:
        stop = self._encoder.stop_token_ids[0]
        whole = [*self._encoder.encode(reply), stop] if isinstance(reply, str) else list(reply)
        ids = whole[: sampling.max_tokens]
        finished = len(ids) == len(whole)
        logprobs = _logprobs(prompt[-1] if prompt else 0, ids)
        return Generation(ids, logprobs, "stop" if finished else "length", ((0, version),))


def _logprobs(last: int, ids: list[int]) -> list[float]:
    return [-((31 * a + 17 * b) % 97 + 1) / 32 for a, b in zip([last, *ids], ids, strict=False)]
