"""A site that somebody else serves, as an application of the gateway: requests are passed on to its address.

For sites on one's own network, such as those of WebArena. Redirects and cookies are left to the browser.
"""

from __future__ import annotations

from typing import Any

import httpx

from palestra.envs.web.gateway import App

TIMEOUT_S = 60.0
_HOP = {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade", b"content-length",
        b"content-encoding"}  # fmt: skip


def upstream(url: str, transport: httpx.AsyncBaseTransport | None = None) -> App:
    """An application that answers what the server at `url` (scheme and host) answers; 502 where that fails."""
    base = url.rstrip("/")

    async def answer(scope: dict[str, Any], receive: App, send: App) -> None:
        body = await _body(receive)
        path = scope["raw_path"].decode() + (
            f"?{scope['query_string'].decode()}" if scope["query_string"] else ""
        )
        headers = [(k, v) for k, v in scope["headers"] if k not in _HOP]
        try:
            async with httpx.AsyncClient(timeout=TIMEOUT_S, transport=transport) as client:
                reply = await client.request(scope["method"], base + path, headers=headers, content=body)
        except httpx.HTTPError as error:
            await _send(send, 502, [(b"content-type", b"text/plain")], f"{base}: {error}".encode())
            return
        kept = [(k.lower(), v) for k, v in reply.headers.raw if k.lower() not in _HOP]
        await _send(send, reply.status_code, kept, reply.content)

    return answer


async def _body(receive: App) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _send(send: App, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
