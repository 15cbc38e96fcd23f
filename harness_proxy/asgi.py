"""The few ASGI moves that the proxy makes: read a body within a bound, notice a caller that left, answer
once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any

from palestra.harness_proxy.errors import BadRequestError, BodyTooLargeError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Coroutine[Any, Any, MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Header fields by lower-case name; of repeated ones the last."""
    return dict(scope["headers"])


async def read_body(receive: Receive, headers: Mapping[bytes, bytes], max_bytes: int) -> bytes:
    """The whole request body.

    Raises BodyTooLargeError past `max_bytes`, and BadRequestError where the caller left in the middle or
    packed it.
    """
    if headers.get(b"content-encoding", b"identity") != b"identity":
        raise BadRequestError("send the body without content-encoding")
    if int(headers.get(b"content-length", b"0")) > max_bytes:
        raise BodyTooLargeError(f"the body must not be larger than {max_bytes} bytes")
    body = bytearray()
    more = True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise BadRequestError("the caller left before the body was complete")
        body += event.get("body", b"")
        if len(body) > max_bytes:
            raise BodyTooLargeError(f"the body must not be larger than {max_bytes} bytes")
        more = event.get("more_body", False)
    return bytes(body)


def has_left(receive: Receive) -> bool:
    """Whether the caller is known to have gone, without waiting.

    `receive` blocks while the caller is there, so it is run up to its first wait and dropped: the alternative
    is a task per request that waits for a disconnect.
    """
    step = receive()
    try:
        step.send(None)
    except StopIteration as ended:
        return bool(ended.value["type"] == "http.disconnect")
    step.close()
    return False


async def respond(send: Send, status: int, body: bytes, headers: Mapping[bytes, bytes]) -> None:
    """Send one complete response."""
    fields = [(b"content-length", b"%d" % len(body)), *headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": body})
