"""Kept connections to a model server: what is read, and what counts as no answer."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.harness_proxy.engines import remote
from palestra.harness_proxy.engines.base import EngineError
from palestra.harness_proxy.engines.http import HttpClient, HttpError

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\nhi"
CONTINUED = b"HTTP/1.1 100 Continue\r\n\r\n" + OK
LAST = OK.replace(b"OK\r\n", b"OK\r\nconnection: close\r\n")


@asynccontextmanager
async def serving(
    answers: Sequence[bytes], hang_up: bool = False
) -> AsyncIterator[tuple[HttpClient, list[Any]]]:
    """A client, and what its server saw: the connection's number and the request's head."""
    seen: list[Any] = []
    left, connections = list(answers), [0]

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = connections[0] = connections[0] + 1
        try:
            while left:
                head = await reader.readuntil(b"\r\n\r\n")
                seen.append((number, head))
                writer.write(left.pop(0))
                await writer.drain()
                if hang_up:
                    break
            if not hang_up:
                await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", {"x-a": "1"}, 5.0)
    try:
        yield client, seen
    finally:
        await client.aclose()
        server.close()
        await server.wait_closed()


@pytest.mark.parametrize("answer", [OK, CHUNKED, CONTINUED], ids=["length", "chunked", "continue"])
async def test_a_connection_is_used_again(answer: bytes) -> None:
    async with serving([answer, answer]) as (client, seen):
        assert [await client.request("GET", "/x", headers={"x-b": "é"}) for _ in range(2)] == [
            (200, b"hi")
        ] * 2
    assert [number for number, _ in seen] == [1, 1]
    assert seen[0][1].startswith(b"GET /v1/x HTTP/1.1\r\nhost: 127.0.0.1:")
    assert b"\r\nx-a: 1\r\nx-b: \xc3\xa9\r\ncontent-length: 0\r\n" in seen[0][1]


@pytest.mark.parametrize("answer", [UNTIL_CLOSED, LAST], ids=["until-closed", "last"])
async def test_a_connection_that_ended_is_not_used_again(answer: bytes) -> None:
    async with serving([answer, answer], hang_up=True) as (client, seen):
        assert [await client.request("GET", "/x") for _ in range(2)] == [(200, b"hi")] * 2
    assert [number for number, _ in seen] == [1, 2]


@pytest.mark.parametrize("answer", [b"", OK[:-1], UNTIL_CLOSED[:18], CHUNKED[:-3], b"SMTP ready\r\n\r\n"])
async def test_half_an_answer_is_none(answer: bytes) -> None:
    async with serving([answer], hang_up=True) as (client, _):
        with pytest.raises(HttpError):
            await client.request("POST", "/x", b"{}")


async def test_a_late_answer_is_not_taken_for_the_next_one() -> None:
    async with serving([OK[:-1], OK]) as (client, seen):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.request("GET", "/x"), 0.1)
        assert await client.request("GET", "/x") == (200, b"hi")
    assert [number for number, _ in seen] == [1, 2]


async def test_bytes_that_nobody_asked_for_cut_the_connection() -> None:
    async with serving([OK + OK.replace(b"hi", b"no"), OK]) as (client, seen):
        assert [await client.request("GET", "/x") for _ in range(2)] == [(200, b"hi")] * 2
    assert [number for number, _ in seen] == [1, 2]


async def test_a_header_is_one_header() -> None:
    async with serving([]) as (client, _):
        with pytest.raises(ValueError, match="line breaks"):
            await client.request("GET", "/x", headers={"x-session-id": "a\r\nx-evil: 1"})


def test_a_url_without_a_host_is_refused() -> None:
    with pytest.raises(ValueError, match="http://host:port"):
        HttpClient("localhost:8000/v1", {}, 1.0)


ids = st.lists(st.integers(0, 9), min_size=1, max_size=3)
values = st.lists(st.floats(-9, 0), min_size=1, max_size=3)
anything = st.one_of(st.lists(st.integers(0, 9) | st.floats(-9, 0) | st.booleans() | st.none()), st.just("1"))


@given(
    ids=ids | anything,
    values=values | anything,
    given_ids=ids | anything,
    reason=st.sampled_from(["stop", "eos"]),
)
def test_what_the_short_check_takes_pydantic_takes_too(
    ids: Any, values: Any, given_ids: Any, reason: str
) -> None:
    choice = {"token_ids": ids, "prompt_token_ids": given_ids, "finish_reason": reason}
    choice |= {"logprobs": {"token_logprobs": values}}
    plain = remote._plain(choice)
    assert plain is None or plain == remote._validated(choice)
    if reason == "eos":
        with pytest.raises(EngineError, match="finish_reason|token_ids|logprobs"):
            remote._validated(choice)


@given(ids, values, st.none() | ids, st.sampled_from(["stop", "length"]))
def test_the_short_check_takes_the_usual(ids: Any, values: Any, given_ids: Any, reason: str) -> None:
    choice = {"token_ids": ids, "logprobs": {"token_logprobs": values}, "finish_reason": reason}
    assert remote._plain(choice | {"prompt_token_ids": given_ids}) == (ids, values, given_ids, reason)
