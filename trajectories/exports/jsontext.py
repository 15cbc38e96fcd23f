"""JSON bytes of a row, for all that a record may hold."""

from __future__ import annotations

import json
from typing import Any

import orjson


def json_bytes(row: Any) -> bytes:
    """Compact JSON of `row`; half a surrogate pair and integers beyond 64 bits, which orjson refuses, included."""
    try:
        return orjson.dumps(row, default=dict)
    except TypeError:
        return json.dumps(row, default=dict, separators=(",", ":")).encode()
