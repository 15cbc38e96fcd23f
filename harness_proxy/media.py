"""Images that callers send, kept once each under their SHA-256 until the session's store takes them.

An image in the request becomes bytes, checked to be PNG, JPEG, GIF or WebP; one behind an http(s) URL stays the
URL (nothing is fetched). Canonical messages name either by hash.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import reprlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from palestra.harness_proxy.errors import BadRequestError, BodyTooLargeError
from palestra.trajectories.model import Media

URL_MIME = "text/uri-list"
"""Of an image of which only the URL is known: the blob is the URL."""

_MAX_URL_CHARS = 8192


class Attachments:
    """Images of one session."""

    def __init__(self, *, max_image_bytes: int = 20 * 2**20, max_bytes: int = 256 * 2**20) -> None:
        self.blobs: dict[str, bytes] = {}
        """Content by SHA-256."""
        self._max_image_bytes, self._left = max_image_bytes, max_bytes

    def get(self, sha256: str) -> bytes:
        """The content of an image of this session."""
        return self.blobs[sha256]

    def add(self, url: str, offset: int) -> Media:
        """Keep the image at `url`, which stands `offset` characters into its message.

        Raises BadRequestError for what is no image, and BodyTooLargeError past the bounds.
        """
        scheme = url[:5].lower()
        data, mime = _decoded(url) if scheme == "data:" else _address(url)
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 not in self.blobs:
            self._take(len(data))
            self.blobs[sha256] = data
        return Media(sha256, mime, offset)

    def _take(self, size: int) -> None:
        if size > self._max_image_bytes:
            raise BodyTooLargeError(f"an image of {size} bytes: at most {self._max_image_bytes} are taken")
        if size > self._left:
            raise BodyTooLargeError("the images of this session are larger together than the proxy keeps")
        self._left -= size


def image_url(part: Mapping[str, Any]) -> str | None:
    """The address of an image part in any dialect, as a data: or http(s): URL; None for another part.

    Raises BadRequestError for an image that is named by what only the provider has (a file id).
    """
    kind = part.get("type")
    if kind in ("image_url", "input_image"):
        given = part.get("image_url")
        return _text(given.get("url") if isinstance(given, dict) else given)
    if kind == "image":
        return _source_url(part.get("source"))
    inline = part.get("inlineData", part.get("inline_data"))
    if isinstance(inline, dict):
        return _data_url(inline.get("mimeType", inline.get("mime_type")), inline.get("data"))
    file = part.get("fileData", part.get("file_data"))
    return _text(file.get("fileUri", file.get("file_uri"))) if isinstance(file, dict) else None


def _source_url(source: Any) -> str:
    if isinstance(source, dict) and source.get("type") == "base64":
        return _data_url(source.get("media_type"), source.get("data"))
    return _text(source.get("url") if isinstance(source, dict) else source)


def _data_url(mime: Any, data: Any) -> str:
    return f"data:{_text(mime)};base64,{_text(data)}"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise BadRequestError(f"an image must be sent as data or as a URL, got {reprlib.repr(value)}")


def _address(url: str) -> tuple[bytes, str]:
    if len(url) > _MAX_URL_CHARS or not (url.isascii() and url.isprintable() and _is_http(url)):
        raise BadRequestError(f"an image needs a data: or http(s): URL, got {reprlib.repr(url)}")
    return url.encode(), URL_MIME


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that are no IPv6 address
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def _decoded(url: str) -> tuple[bytes, str]:
    head, _, body = url.partition(",")
    if not head.endswith(";base64"):
        raise BadRequestError(
            f"image data must be base64: data:image/png;base64,..., got {reprlib.repr(url)}"
        )
    try:
        data = base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadRequestError(f"the data of an image is no base64: {error}") from error
    return data, _mime(data)


def _mime(data: bytes) -> str:
    """The kind of image by its first bytes."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    raise BadRequestError(f"an image must be PNG, JPEG, GIF or WebP, its data begins with {data[:8]!r}")
