"""Images in every dialect: kept once under their hash, placed where they stood; malformed ones refused."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.harness_proxy.dialects import DIALECTS
from palestra.harness_proxy.dialects.base import Dialect
from palestra.harness_proxy.errors import BadRequestError, BodyTooLargeError
from palestra.harness_proxy.media import URL_MIME, Attachments

PNG = b"\x89PNG\r\n\x1a\n" + bytes(8)
KINDS = {
    "image/png": PNG,
    "image/jpeg": b"\xff\xd8\xff\xe0x",
    "image/gif": b"GIF89ax",
    "image/webp": b"RIFF\0\0\0\0WEBPx",
}
Turn = Callable[[str, str], Any]


def chat(data: str, mime: str) -> Any:
    image = {"type": "image_url", "image_url": {"url": f"data:{mime};base64,{data}"}}
    return {"role": "user", "content": [{"type": "text", "text": "ab"}, image, {"type": "text", "text": "c"}]}


def responses(data: str, mime: str) -> Any:
    image = {"type": "input_image", "image_url": f"data:{mime};base64,{data}"}
    text = [{"type": "input_text", "text": t} for t in ("ab", "c")]
    return [{"role": "user", "content": [text[0], image, text[1]]}]


def anthropic(data: str, mime: str) -> Any:
    image = {"type": "image", "source": {"type": "base64", "media_type": mime, "data": data}}
    text = [{"type": "text", "text": t} for t in ("ab", "c")]
    return {"role": "user", "content": [text[0], image, text[1]]}


def gemini(data: str, mime: str) -> Any:
    image = {"inlineData": {"mimeType": mime, "data": data}}
    return {"role": "user", "parts": [{"text": "ab"}, image, {"text": "c"}]}


TURNS: Mapping[str, Turn] = {"chat": chat, "responses": responses, "anthropic": anthropic, "gemini": gemini}

RESULTS: Mapping[str, Callable[[str], Any]] = {
    "chat": lambda url: {
        "role": "tool",
        "tool_call_id": "c",
        "content": [{"type": "image_url", "image_url": {"url": url}}],
    },
    "responses": lambda url: [
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_image", "image_url": url}],
        }
    ],
    "anthropic": lambda url: {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "c",
                "content": [{"type": "image", "source": {"type": "url", "url": url}}],
            }
        ],
    },
    "gemini": lambda url: {
        "role": "user",
        "parts": [
            {
                "functionResponse": {
                    "id": "c",
                    "name": "f",
                    "response": {"output": ""},
                    "parts": [{"fileData": {"fileUri": url, "mimeType": "image/png"}}],
                }
            }
        ],
    },
}

every_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=lambda d: d.name)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


@every_dialect
@pytest.mark.parametrize("mime", KINDS)
def test_an_image_is_kept_under_its_hash(dialect: Dialect, mime: str) -> None:
    data, kept = KINDS[mime], Attachments()
    for _ in range(2):
        (message,) = dialect.read(TURNS[dialect.name](encoded(data), mime), kept)
    (media,) = message.media
    assert (message.content, media.offset, media.mime) == ("abc", 2, mime)
    assert kept.blobs == {hashlib.sha256(data).hexdigest(): data} == {media.sha256: data}


@every_dialect
def test_a_tool_result_may_show_an_image_by_its_address(dialect: Dialect) -> None:
    kept, url = Attachments(), "https://example.org/a.png"
    (message,) = dialect.read(RESULTS[dialect.name](url), kept)
    assert message.role == "tool" and message.tool_call_id == "c"
    assert [m.mime for m in message.media] == [URL_MIME]
    assert kept.get(message.media[0].sha256) == url.encode()


@every_dialect
@pytest.mark.parametrize("data", ["%%%", "é", encoded(b"<svg/>"), "", encoded(PNG)[:-3] + "="])
def test_what_is_no_image_is_refused(dialect: Dialect, data: str) -> None:
    with pytest.raises(BadRequestError):
        dialect.read(TURNS[dialect.name](data, "image/png"), Attachments())


@every_dialect
@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "ftp://x/y",
        "http://",
        "data:image/png,raw",
        "https://x/\n",
        "http://[",
        "x" * 9000,
    ],
)
def test_other_addresses_are_refused(dialect: Dialect, url: str) -> None:
    with pytest.raises(BadRequestError):
        dialect.read(RESULTS[dialect.name](url), Attachments())


leaves = (
    st.none()
    | st.integers()
    | st.sampled_from(
        [
            "base64",
            "url",
            "image/png",
            encoded(PNG),
            "https://x/y",
            "http://[",
            "data:image/png;base64,x",
            "\ud800",
        ]
    )
    | st.text(max_size=3)
)
parts = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["image", "image_url", "input_image", "text"]) | leaves,
        **{
            name: st.recursive(
                leaves,
                lambda v: st.dictionaries(
                    st.sampled_from(["type", "url", "data", "media_type", "mimeType", "fileUri"]), v
                ),
                max_leaves=6,
            )
            for name in ("image_url", "source", "inlineData", "fileData", "text")
        },
    },
)


@every_dialect
@settings(max_examples=200, deadline=None)
@given(part=parts)
def test_any_part_is_read_or_refused(dialect: Dialect, part: Any) -> None:
    content = "parts" if dialect.name == "gemini" else "content"
    turn: Any = {"role": "user", content: [part]}
    try:
        dialect.read([turn] if dialect.name == "responses" else turn, Attachments())
    except BadRequestError as error:
        assert str(error)


@every_dialect
def test_a_model_without_eyes_says_so(dialect: Dialect) -> None:
    with pytest.raises(BadRequestError, match="reads no images"):
        dialect.read(TURNS[dialect.name](encoded(PNG), "image/png"))


@every_dialect
def test_sizes_are_bounded(dialect: Dialect) -> None:
    turn = TURNS[dialect.name]
    with pytest.raises(BodyTooLargeError):
        dialect.read(turn(encoded(PNG), "image/png"), Attachments(max_image_bytes=len(PNG) - 1))
    kept = Attachments(max_bytes=2 * len(PNG))
    for n in range(2):
        dialect.read(turn(encoded(PNG[:-1] + bytes([n])), "image/png"), kept)
    with pytest.raises(BodyTooLargeError):
        dialect.read(turn(encoded(PNG[:-1] + b"\x02"), "image/png"), kept)
