"""What an API dialect must do: turn its requests into canonical messages and canonical replies into its own.

The path of a request decides its dialect. A dialect is stateless and knows no sessions, tokens or engines.
Its history is read item by item (`turns`, then `read` for each), so that a history that was read before is
not read again.

A *reply id* is what a dialect can hide in a field that callers send back word for word (a signature, an
encrypted_content): it tells which of several equal replies a history goes on from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from palestra.harness_proxy.errors import RequestError
from palestra.harness_proxy.media import Attachments
from palestra.trajectories.model import FinishReason, Message, Role


@dataclass(frozen=True, slots=True)
class Request:
    """One request, decoded but for its messages."""

    body: Mapping[str, Any]
    turns: list[Any]
    """The history as the dialect writes it, oldest first; `Dialect.read` makes messages of each item."""
    tools: tuple[Mapping[str, Any], ...]
    """OpenAI function definitions: {"type": "function", "function": {...}}."""
    requested: Mapping[str, Any]
    """Sampling parameters that the caller asked for, in its own words."""
    unapplied: tuple[str, ...]
    """Names of parameters that change what is sampled and that the proxy does not apply."""
    max_tokens: int | None = None
    stream: bool = False
    logprobs: bool = False
    token_ids: bool = False
    target: str = ""
    """Path and query of the URL, for dialects that write parameters there."""
    role: Role | None = None
    """The part in the session that the body claims; None where it says nothing."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the caller gets. `seq` is None where nothing was sampled: a budget ran out, `stop` says which."""

    id: str
    message: Message
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    seq: int | None = None
    stop: str | None = None
    logprobs: tuple[tuple[str, float], ...] = ()
    """(text of the token, log-probability in nats) per sampled token, where asked for."""
    prompt_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    """Both only where asked for."""
    cached_tokens: int = 0
    """Of the prompt tokens, those that were on record and were not rendered again."""
    reasoning_tokens: int = 0
    """Of the completion tokens, those of the reasoning."""


class Dialect(Protocol):
    """One API."""

    name: str
    prefix: str
    """Of the paths whose errors are written in this dialect though nothing is served there."""

    def serves(self, path: str) -> bool:
        """Whether a POST to `path` is a model call in this dialect."""
        ...

    def counts(self, path: str) -> bool:
        """Whether a POST to `path` asks for the number of tokens of a prompt."""
        ...

    def side_reply(self, method: str, path: str, model_name: str) -> bytes | None:
        """The JSON answer to a request that samples nothing (model lists, probes); None where it is not
        one."""
        ...

    def decode(self, body: Any, target: str = "") -> Request:
        """Read a JSON body that came to `target` (path and query). Raises BadRequestError."""
        ...

    def read(self, turn: Any, attachments: Attachments | None = None) -> Sequence[Message]:
        """Canonical messages of one item of the history, its images kept in `attachments`; without those, images
        are refused. Raises BadRequestError."""
        ...

    def reply_id(self, turn: Any) -> str | None:
        """`Reply.id` that an item of the history carries, where the dialect has a place for it."""
        ...

    def encode(self, request: Request, reply: Reply) -> bytes:
        """The JSON body of a reply."""
        ...

    def stream(self, request: Request, reply: Reply) -> bytes:
        """The whole reply as server-sent events."""
        ...

    def encode_count(self, tokens: int) -> bytes:
        """The JSON answer to a request that `counts`."""
        ...

    def status(self, error: RequestError) -> int:
        """The HTTP status under which this API's clients do what `error` means."""
        ...

    def error(self, error: RequestError) -> bytes:
        """The JSON body of an error."""
        ...
