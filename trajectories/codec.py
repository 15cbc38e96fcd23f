"""Trajectories as bytes: compact, exact, versioned.

    header   schema u16, compressed u8, pad u8, size of the rollout part u32, its crc32 u32   (little-endian)
    rollout  the `Rollout` alone, so that a listing does not read tokens
    body     nodes, calls, steps, tools; zstd level 1 where that is asked for

Both parts are msgpack. A record is the array of its fields in declaration order: a new field goes last, has a
default (so that older records read) and raises SCHEMA (so that older readers refuse). The token arrays of all
nodes are joined into three little-endian columns: ids int32, sampled mask as bits, log-probabilities float32.
This is not an exchange format.
"""

from __future__ import annotations

import struct
import threading
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeVar

import msgpack  # type: ignore[import-untyped]
import numpy as np
import zstandard

from palestra.trajectories.errors import CorruptError, EncodeError, SchemaError
from palestra.trajectories.model import (
    Call,
    Drift,
    EnvStep,
    Failure,
    FloatArray,
    Media,
    Message,
    Node,
    Rollout,
    Sampling,
    Score,
    ToolCall,
    Trajectory,
)

SCHEMA = 2
"""Version of the layout above; readers refuse newer ones."""

_T = TypeVar("_T")
Tools = Mapping[str, tuple[Mapping[str, Any], ...]]
_INT, _FLOAT, _BOOL = np.dtype("<i4"), np.dtype("<f4"), np.dtype("?")
HEADER = struct.Struct("<HBxII")
_BIG_INT = 1  # msgpack extension: an integer beyond 64 bits, in decimal
_local = threading.local()
_RECORDS = (Call, Drift, EnvStep, Failure, Media, Message, Rollout, Sampling, Score, ToolCall)
_NAMES: dict[type, list[str]] = {record: [f.name for f in fields(record)] for record in _RECORDS}
_VALUES: dict[type, Callable[[Any], Any]] = {record: attrgetter(*names) for record, names in _NAMES.items()}


def encode(trajectory: Trajectory, compress_above: int | None = None) -> bytes:
    """`trajectory` as bytes; `decode` gives an equal one back, token for token and bit for bit.

    A body of more than `compress_above` bytes is compressed. Mappings must hold what JSON holds.
    Raises EncodeError for a value or an array type that could not be given back exactly.
    """
    rollout = _pack(trajectory.rollout)
    body = encode_body(trajectory.nodes, trajectory.calls, trajectory.steps, trajectory.tools)
    compressed = compress_above is not None and len(body) > compress_above
    header = HEADER.pack(SCHEMA, compressed, len(rollout), zlib.crc32(rollout))
    return b"".join((header, rollout, zstandard.compress(body, 1) if compressed else body))


def decode(payload: bytes) -> Trajectory:
    """The inverse of `encode`. Raises SchemaError for a newer schema and CorruptError for damage."""
    rollout = decode_rollout(payload)
    try:
        return Trajectory(rollout, *decode_body(_body(payload)))
    except (CorruptError, zstandard.ZstdError) as error:
        raise CorruptError(f"rollout {rollout.rollout_id}: the record does not decode ({error})") from error


def encode_body(
    nodes: Sequence[Node], calls: Sequence[Call], steps: Sequence[EnvStep], tools: Tools
) -> bytes:
    """A part of a trajectory, not compressed; nodes and calls may begin in the middle. Raises EncodeError."""
    return _pack([*_columns(nodes), calls, steps, tools])


def decode_body(
    body: bytes,
) -> tuple[tuple[Node, ...], tuple[Call, ...], tuple[EnvStep, ...], dict[str, tuple[Any, ...]]]:
    """Nodes, calls, steps and tools: the inverse of `encode_body`. Raises CorruptError."""
    try:
        nodes, ids, bits, logprobs, calls, steps, tools = _unpack(body)
        return (
            _nodes(nodes, ids, bits, logprobs),
            tuple(map(_call, calls)),
            tuple(EnvStep(*step) for step in steps),
            {digest: tuple(definitions) for digest, definitions in tools.items()},
        )
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise CorruptError(str(error)) from error


def head_size(payload: bytes) -> int:
    """Bytes from the start that `decode_rollout` needs, given at least the header."""
    return int(HEADER.size + _header(payload)[1])


def decode_rollout(payload: bytes) -> Rollout:
    """The rollout alone; `payload` may end after `head_size` bytes. Raises as `decode`."""
    _, size, checksum = _header(payload)
    head = payload[HEADER.size : HEADER.size + size]
    if len(head) < size or zlib.crc32(head) != checksum:
        raise CorruptError("the summary of a rollout does not match its checksum")
    try:
        return _rollout(_unpack(head))
    except (ValueError, TypeError, LookupError) as error:
        raise CorruptError(f"the summary of a rollout does not decode ({error})") from error


def encode_overlay(rollout_id: str, name: str, values: FloatArray, meta: Mapping[str, Any]) -> bytes:
    """A named array about a rollout (advantages per step, for example), any shape. Raises EncodeError."""
    column = _column([values.ravel()], _FLOAT)
    return _pack([SCHEMA, rollout_id, name, values.shape, column, meta])


def decode_overlay(payload: bytes) -> tuple[str, str, FloatArray, dict[str, Any]]:
    """(rollout id, name, values, meta). Raises as `decode`."""
    try:
        schema, *rest = _unpack(payload)
        _check_schema(schema)
        rollout_id, name, shape, column, meta = rest
        return rollout_id, name, np.frombuffer(column, _FLOAT).reshape(shape), meta
    except (ValueError, TypeError) as error:
        raise CorruptError(f"an overlay does not decode ({error})") from error


def _pack(value: Any) -> bytes:
    try:
        packed = _packer().pack(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise EncodeError(f"cannot write this record exactly: {error}") from error
    assert isinstance(packed, bytes)
    return packed


def _packer() -> msgpack.Packer:
    """This thread's: a new one takes a large buffer each time."""
    if not hasattr(_local, "packer"):
        _local.packer = msgpack.Packer(default=_plain, unicode_errors="surrogatepass")
    return _local.packer


def _unpack(packed: bytes) -> Any:
    return msgpack.unpackb(packed, ext_hook=_extension, strict_map_key=False, unicode_errors="surrogatepass")


def _plain(value: Any) -> Any:
    """What msgpack knows, for what it does not know."""
    if (record := _VALUES.get(type(value))) is not None:
        return record(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, int):
        return msgpack.ExtType(_BIG_INT, str(value).encode())
    raise TypeError(f"a {type(value).__name__} is not a JSON value ({value!r})")


def _extension(code: int, data: bytes) -> int:
    if code != _BIG_INT:
        raise ValueError(f"unknown msgpack extension {code}")
    return int(data)


def _column(arrays: Sequence[np.ndarray[Any, Any]], dtype: np.dtype[Any]) -> bytes:
    for array in arrays:
        if array.dtype is not dtype or array.ndim != 1:
            return _converted(arrays, dtype)
    return b"".join([a.tobytes() for a in arrays])


def _converted(arrays: Sequence[np.ndarray[Any, Any]], dtype: np.dtype[Any]) -> bytes:
    try:
        joined = np.concatenate([np.empty(0, dtype), *arrays], dtype=dtype, casting="equiv")
    except (TypeError, ValueError) as error:
        raise EncodeError(f"a column of {dtype} takes only arrays of that type: {error}") from error
    return joined.tobytes()


def _columns(nodes: Sequence[Node]) -> tuple[list[Any], bytes, bytes, bytes]:
    """Nodes without their arrays, then the ids, mask bits and log-probabilities of all nodes, joined."""
    plain = []
    for n in nodes:
        size = len(n.token_ids)
        if size != len(n.sampled):
            raise EncodeError(f"node {n.node_id}: {size} ids, a mask of {len(n.sampled)}")
        plain.append((n.node_id, n.parent, n.message, n.versions, size, len(n.logprobs)))
    ids = _column([n.token_ids for n in nodes], _INT)
    mask = np.frombuffer(_column([n.sampled for n in nodes], _BOOL), _BOOL)
    logprobs = _column([n.logprobs for n in nodes], _FLOAT)
    return plain, ids, np.packbits(mask).tobytes(), logprobs


def _nodes(plain: list[Any], ids: bytes, bits: bytes, logprobs: bytes) -> tuple[Node, ...]:
    all_ids, all_logprobs = np.frombuffer(ids, _INT), np.frombuffer(logprobs, _FLOAT)
    mask = np.unpackbits(np.frombuffer(bits, np.uint8), count=len(all_ids)).view(np.bool_)
    mask.flags.writeable = False
    nodes, start, sampled_start = [], 0, 0
    for node_id, parent, message, versions, size, sampled_size in plain:
        end, sampled_end = start + size, sampled_start + sampled_size
        spans = tuple((first, version) for first, version in versions)
        arrays = all_ids[start:end], mask[start:end], all_logprobs[sampled_start:sampled_end]
        nodes.append(Node(node_id, parent, _message(message), *arrays, spans))
        start, sampled_start = end, sampled_end
    if (start, sampled_start, (start + 7) // 8) != (len(all_ids), len(all_logprobs), len(bits)):
        raise ValueError(f"{start} tokens in nodes, {len(all_ids)} in columns")
    return tuple(nodes)


def _message(values: list[Any]) -> Message:
    message = _named(Message, values)
    message["tool_calls"] = tuple(ToolCall(*call) for call in message["tool_calls"])
    message["media"] = tuple(Media(*media) for media in message["media"])
    return Message(**message)


def _call(values: list[Any]) -> Call:
    call = _named(Call, values)
    sampling = _named(Sampling, call["effective"])
    sampling["stop_token_ids"] = tuple(sampling["stop_token_ids"])
    call["effective"] = Sampling(**sampling)
    call["drift"] = _optional(Drift, call["drift"])
    return Call(**call)


def _rollout(values: list[Any]) -> Rollout:
    rollout = _named(Rollout, values)
    rollout["score"] = _optional(Score, rollout["score"])
    rollout["failure"] = _optional(Failure, rollout["failure"])
    rollout["findings"] = tuple(rollout["findings"])
    versions = rollout["policy_versions"]
    rollout["policy_versions"] = tuple(versions) if versions is not None else None
    return Rollout(**rollout)


def _named(record: type, values: list[Any]) -> dict[str, Any]:
    names = _NAMES[record]
    if len(values) > len(names):
        raise ValueError(f"a {record.__name__} of {len(values)} fields, at most {len(names)} are known")
    return dict(zip(names, values, strict=False))


def _optional(record: Callable[..., _T], values: list[Any] | None) -> _T | None:
    return None if values is None else record(*values)


def _header(payload: bytes) -> tuple[bool, int, int]:
    """(compressed, size of the rollout part, its checksum)."""
    if len(payload) < HEADER.size:
        raise CorruptError(f"a trajectory of {len(payload)} bytes is shorter than its header")
    schema, compressed, size, checksum = HEADER.unpack_from(payload)
    _check_schema(schema)
    return bool(compressed), size, checksum


def _check_schema(schema: int) -> None:
    if schema > SCHEMA:
        raise SchemaError(
            f"this record has schema {schema}, palestra here reads up to {SCHEMA}: upgrade palestra"
        )


def _body(payload: bytes) -> bytes:
    compressed, size, _ = _header(payload)
    body = payload[HEADER.size + size :]
    return zstandard.decompress(body) if compressed else body
