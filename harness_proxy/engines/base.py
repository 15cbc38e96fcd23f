"""What the proxy asks of an engine: token ids in, token ids and log-probabilities out.

EngineError
  - EngineUnavailableError   worth a retry: the engine is starting, draining, overloaded or lost it
      - EngineFullError      worth a retry later: too many calls wait in line
  - PromptTooLongError       final: prompt and reply do not fit the context window (also a ValueError)
  - InvalidRequestError      final: ids outside the vocabulary, impossible sampling (also a ValueError)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from palestra.trajectories.model import CaptureLevel, FinishReason, Sampling


class EngineError(Exception):
    """Base of what an engine raises on purpose."""


class EngineUnavailableError(EngineError):
    """Raised when the same request may work later."""


class EngineFullError(EngineUnavailableError):
    """Raised when too many calls wait for the engine already."""


class PromptTooLongError(EngineError, ValueError):
    """Raised when the prompt leaves no room for a reply in the context window."""

    def __init__(self, prompt_tokens: int, limit: int) -> None:
        super().__init__(
            f"this model's maximum context length is {limit} tokens, the prompt has {prompt_tokens}"
        )
        self.prompt_tokens, self.limit = prompt_tokens, limit

    def __reduce__(self) -> tuple[type[PromptTooLongError], tuple[int, int]]:
        return PromptTooLongError, (self.prompt_tokens, self.limit)


class InvalidRequestError(EngineError, ValueError):
    """Raised when a request could never be sampled."""


@dataclass(frozen=True, slots=True)
class Capability:
    """What an engine was seen to give when it was probed."""

    model: str
    capture_level: CaptureLevel
    logprob_semantics: Literal["processed", "raw", "none"]
    """processed: of the distribution sampled from (temperature and truncation applied); raw: before."""
    context_tokens: int


@dataclass(frozen=True, slots=True)
class Generation:
    """One reply: the sampled ids, the stop token included, with the log-probability of each in nats."""

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    versions: tuple[tuple[int, int], ...] = ((0, 0),)
    """(index of the first token, policy version) per span: more than one after an update in mid-reply."""


class Engine(Protocol):
    """Samples from a language model. Safe to call concurrently from one event loop."""

    async def probe(self) -> Capability:
        """Try the engine and say what it really returns. Raises EngineError when it does not answer."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, session: str = ""
    ) -> Generation:
        """Continue `prompt_ids`. `session` names the rollout, for cache and routing affinity.

        Raises PromptTooLongError and EngineUnavailableError.
        """
        ...

    async def aclose(self) -> None:
        """Release everything. Calling it twice is fine."""
        ...
