"""The few ASGI moves that the proxy makes: read a body within a bound, notice a caller that left, answer
once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any

from palestra.harness_proxy.errors import BadRequestError, BodyTooLargeError

Event = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Header fields by lower-case name; of repeated ones the last."""
    return dict(scope["headers"])


async def read_body(
    receive: Receive, headers: Mapping[bytes, bytes], max_bytes: int, within_s: float | None
) -> bytes:
    """The whole request body.

    Raises BodyTooLargeError past `max_bytes`, BadRequestError where the caller left in the middle or packed it, and
    TimeoutError where it takes longer than `within_s`.
    """
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise BadRequestError("send the body without content-encoding")
    if int(headers.get(b"content-length", b"0")) > max_bytes:
        raise BodyTooLargeError(f"the body must not be larger than {max_bytes} bytes")
    body = bytearray()
    here = _at_once(receive)
    if here is None or _take(here, body, max_bytes):
        async with asyncio.timeout(within_s):
            while _take(await receive(), body, max_bytes):
                pass
    return bytes(body)


def _take(event: Event, body: bytearray, max_bytes: int) -> bool:
    """Add what came to `body`; whether more is to come."""
    if event["type"] == "http.disconnect":
        raise BadRequestError("the caller left before the body was complete")
    body += event.get("body", b"")
    if len(body) > max_bytes:
        raise BodyTooLargeError(f"the body must not be larger than {max_bytes} bytes")
    return bool(event.get("more_body", False))


def has_left(receive: Receive) -> bool:
    """Whether the caller is known to have gone, without waiting."""
    event = _at_once(receive)
    return event is not None and event["type"] == "http.disconnect"


def _at_once(receive: Receive) -> Event | None:
    """What the caller did, where it did something.

    `receive` blocks where it did not, so it is run up to its first wait and dropped: the alternative is a timer or
    a task per request.
    """
    step = receive()
    try:
        step.send(None)
    except StopIteration as ended:
        event: Event = ended.value
        return event
    step.close()
    return None


async def respond(send: Send, status: int, body: bytes, headers: Mapping[bytes, bytes]) -> None:
    """Send one complete response."""
    fields = [(b"content-length", b"%d" % len(body)), *headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
