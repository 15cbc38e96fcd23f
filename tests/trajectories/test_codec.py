"""A trajectory written and read is the same trajectory, whatever it holds."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from palestra.trajectories import codec
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

MakeTrajectory = Callable[..., Trajectory]

TEXT = st.text(st.characters(), max_size=8)  # lone surrogates too: sandboxes print them
INTS = st.integers(-(2**70), 2**70)
FLOATS = st.floats(allow_nan=False)
JSON = st.recursive(
    st.none() | st.booleans() | INTS | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)
MESSAGES = st.builds(
    Message,
    role=TEXT,
    content=TEXT,
    reasoning=st.none() | TEXT,
    tool_calls=st.lists(st.builds(ToolCall, TEXT, TEXT, TEXT), max_size=2).map(tuple),
    tool_call_id=st.none() | TEXT,
    name=st.none() | TEXT,
    media=st.lists(st.builds(Media, TEXT, TEXT, st.integers(0, 9)), max_size=2).map(tuple),
)
SAMPLINGS = st.builds(
    Sampling,
    temperature=FLOATS,
    top_k=INTS,
    stop_token_ids=st.lists(st.integers(0, 2**31), max_size=3).map(tuple),
    seed=st.none() | INTS,
)
CALLS = st.builds(
    Call,
    seq=st.integers(0, 99),
    dialect=TEXT,
    request_sha256=TEXT,
    tools_sha256=st.none() | TEXT,
    requested=OBJECTS,
    effective=SAMPLINGS,
    node_id=st.integers(0, 99),
    drift=st.none() | st.builds(Drift, TEXT, st.integers(0, 99)),
    retry_of=st.none() | st.integers(0, 99),
    started_s=FLOATS,
    duration_s=FLOATS,
    delivered=st.booleans(),
)
STEPS = st.builds(
    EnvStep, action=TEXT, observation=TEXT, reward=FLOATS, anchor=TEXT, state_digest=TEXT, duration_s=FLOATS
)
SCORES = st.builds(
    Score,
    value=st.floats(allow_nan=False, allow_infinity=False),
    valid=st.just(True),
    parts=st.dictionaries(TEXT, FLOATS, max_size=2),
    evidence=TEXT,
) | st.builds(Score, value=st.none(), valid=st.just(False), evidence=TEXT)
ENDINGS = st.fixed_dictionaries({"score": SCORES}) | st.fixed_dictionaries(
    {"failure": st.builds(Failure, stage=TEXT, message=TEXT)}
)


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    return Rollout(
        rollout_id=draw(TEXT),
        run_id=draw(TEXT),
        group_id=draw(TEXT),
        task_id=draw(TEXT),
        harness=draw(TEXT),
        harness_version=draw(TEXT),
        sample_index=draw(st.integers(0, 99)),
        attempt=draw(st.integers(1, 9)),
        mode=draw(st.sampled_from(["train", "eval"])),
        capture_level=draw(st.sampled_from(["tokens", "logprobs", "text"])),
        seed=draw(INTS),
        truncated=draw(st.booleans()),
        timings=draw(st.dictionaries(TEXT, FLOATS, max_size=2)),
        policy_versions=draw(st.none() | st.tuples(INTS, INTS)),
        findings=tuple(draw(st.lists(TEXT, max_size=2))),
        **draw(ENDINGS),
    )


@st.composite
def nodes(draw: st.DrawFn, node_id: int) -> Node:
    mask = np.array(draw(st.lists(st.booleans(), max_size=12)), np.bool_)
    sampled = int(mask.sum())
    return Node(
        node_id,
        draw(st.none() | st.integers(0, node_id)),
        draw(MESSAGES),
        draw(npst.arrays(np.int32, len(mask))),
        mask,
        draw(npst.arrays(np.float32, sampled, elements=st.floats(width=32))),
        tuple(draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=2))),
    )


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    return Trajectory(
        rollout=draw(rollouts()),
        nodes=tuple(draw(nodes(i)) for i in range(draw(st.integers(0, 4)))),
        calls=tuple(draw(st.lists(CALLS, max_size=3))),
        steps=tuple(draw(st.lists(STEPS, max_size=3))),
        tools=draw(st.dictionaries(TEXT, st.lists(OBJECTS, max_size=2).map(tuple), max_size=2)),
    )


def plain(node: Node) -> tuple[Any, ...]:
    arrays = [(a.dtype, a.shape, a.tobytes()) for a in (node.token_ids, node.sampled, node.logprobs)]
    return (node.node_id, node.parent, node.message, node.versions, arrays)


def assert_same(got: Trajectory, expected: Trajectory) -> None:
    assert list(map(plain, got.nodes)) == list(map(plain, expected.nodes))
    empty = dataclasses.replace(expected, nodes=())
    assert dataclasses.replace(got, nodes=()) == empty


@settings(deadline=None, max_examples=150)
@given(trajectories(), st.none() | st.just(0))
def test_what_is_decoded_is_what_was_encoded(trajectory: Trajectory, compress_above: int | None) -> None:
    payload = codec.encode(trajectory, compress_above)
    assert_same(codec.decode(payload), trajectory)
    assert codec.decode_rollout(payload[: codec.head_size(payload)]) == trajectory.rollout
    assert codec.encode(codec.decode(payload), compress_above) == payload


@given(TEXT, TEXT, npst.arrays(np.float32, npst.array_shapes(min_dims=0, min_side=0, max_side=4)), OBJECTS)
def test_an_overlay_is_what_it_was(
    rollout_id: str, name: str, values: FloatArray, meta: dict[str, Any]
) -> None:
    got_id, got_name, got, got_meta = codec.decode_overlay(
        codec.encode_overlay(rollout_id, name, values, meta)
    )
    assert (got_id, got_name, got_meta) == (rollout_id, name, meta)
    assert (got.dtype, got.shape, got.tobytes()) == (values.dtype, values.shape, values.tobytes())


def test_what_is_read_cannot_be_changed(make_trajectory: MakeTrajectory) -> None:
    node = codec.decode(codec.encode(make_trajectory("r"))).nodes[0]
    assert not any(a.flags.writeable for a in (node.token_ids, node.sampled, node.logprobs))


def test_sixty_four_kilobytes_of_text_are_compressed_where_asked(make_trajectory: MakeTrajectory) -> None:
    trajectory = make_trajectory("r")
    long = Node(0, None, Message("user", "again " * 20_000), *_no_tokens())
    trajectory = dataclasses.replace(trajectory, nodes=(long,))
    assert len(codec.encode(trajectory, 64 * 1024)) < 5_000 < 100_000 < len(codec.encode(trajectory))


def test_numpy_scalars_are_written_as_numbers(make_trajectory: MakeTrajectory) -> None:
    scalars: dict[str, Any] = {
        "seed": np.int64(3),
        "truncated": np.bool_(True),
        "timings": {"env": np.float32(0.5)},
    }
    rollout = dataclasses.replace(make_trajectory("r").rollout, **scalars)
    assert codec.decode(codec.encode(Trajectory(rollout))).rollout == rollout


class TestRefusedToWrite:
    """Rather than write something else than was given."""

    @pytest.mark.parametrize(
        "change",
        [
            {"token_ids": np.array([2**40])},
            {"token_ids": np.array([1], np.int16)},
            {"token_ids": np.array([1.0])},
            {"token_ids": np.array([[1]], np.int32)},
            {"token_ids": np.array([1, 2], np.int32)},
            {"sampled": np.array([1], np.int8)},
            {"logprobs": np.array([0.1])},
            {"logprobs": np.array([], np.float64)},
        ],
    )
    def test_an_array_of_another_type_or_shape(self, change: dict[str, Any]) -> None:
        node = Node(
            0, None, Message("user"), np.array([1], np.int32), np.array([False]), np.empty(0, np.float32)
        )
        node = dataclasses.replace(node, **change)
        with pytest.raises(EncodeError):
            codec.encode(Trajectory(_rollout(), nodes=(node,)))

    @pytest.mark.parametrize("value", [{1, 2}, object(), 1j])
    def test_what_json_does_not_hold(self, value: object) -> None:
        with pytest.raises(EncodeError, match=f"a {type(value).__name__} is not a JSON value"):
            codec.encode(Trajectory(_rollout(), tools={"d": ({"x": value},)}))

    def test_json_too_deep(self) -> None:
        with pytest.raises(EncodeError, match="recursion"):
            codec.encode(_deep(2000))

    def test_json_as_deep_as_it_is_taken_is_read_again(self) -> None:
        trajectory = _deep(900)
        assert codec.decode(codec.encode(trajectory)).tools == trajectory.tools


class TestRefusedToRead:
    def test_a_newer_schema(self, make_trajectory: MakeTrajectory) -> None:
        payload = bytearray(codec.encode(make_trajectory("r")))
        payload[0] = codec.SCHEMA + 1
        with pytest.raises(SchemaError, match=f"schema {codec.SCHEMA + 1}.*upgrade"):
            codec.decode(bytes(payload))
        overlay = codec.encode_overlay("r", "a", np.empty(0, np.float32), {})
        with pytest.raises(SchemaError):
            codec.decode_overlay(overlay.replace(bytes([codec.SCHEMA]), bytes([codec.SCHEMA + 1]), 1))

    @pytest.mark.parametrize("compress_above", [None, 0])
    def test_a_payload_cut_anywhere(
        self, make_trajectory: MakeTrajectory, compress_above: int | None
    ) -> None:
        payload = codec.encode(make_trajectory("r", turns=1, size=4), compress_above)
        for length in range(len(payload)):
            with pytest.raises(CorruptError):
                codec.decode(payload[:length])

    @settings(deadline=None)
    @given(st.binary(max_size=40))
    def test_noise(self, noise: bytes) -> None:
        for read in (codec.decode, codec.decode_overlay):
            with pytest.raises((CorruptError, SchemaError)):
                read(noise)


def test_a_record_with_a_field_of_the_future_is_refused_not_read_in_part() -> None:
    rollout = _rollout()
    values = [getattr(rollout, f.name) for f in dataclasses.fields(rollout)]
    packed = codec._pack([*values, "a field of the future"])
    header = codec.HEADER.pack(codec.SCHEMA, False, len(packed), zlib.crc32(packed))
    with pytest.raises(CorruptError, match=f"a Rollout of {len(values) + 1} fields"):
        codec.decode_rollout(header + packed)


def test_fields_keep_their_places() -> None:
    """A field moved, renamed or put in the middle reads old stores wrongly: add it last and raise SCHEMA."""
    first = {
        Call: "seq dialect request_sha256 tools_sha256 prompt_mode requested effective logprob_semantics "
        "policy_version finish_reason parse_status node_id prompt_tokens started_s duration_s role delivered "
        "retry_of drift",
        Drift: "kind position",
        EnvStep: "index call tool_call_id action observation reward terminated truncated anchor state_digest "
        "valid_action duration_s",
        Failure: "boundary stage message retryable",
        Media: "sha256 mime offset",
        Message: "role content reasoning tool_calls tool_call_id name media",
        Node: "node_id parent message token_ids sampled logprobs versions",
        Rollout: "rollout_id run_id group_id task_id sample_index attempt mode harness harness_version "
        "capture_level seed score failure truncated timings policy_versions findings",
        Sampling: "temperature top_p top_k max_tokens stop_token_ids seed",
        Score: "value valid parts grader grader_version evidence",
        ToolCall: "id name arguments",
        Trajectory: "rollout nodes calls steps tools",
    }
    assert codec.SCHEMA == 2, "2: EnvStep.matched"
    for record, names in first.items():
        found, known = dataclasses.fields(record), names.split()
        assert [f.name for f in found[: len(known)]] == known
        assert not any(f.default is f.default_factory is dataclasses.MISSING for f in found[len(known) :])


def _rollout() -> Rollout:
    return Rollout("r", "run", "g", "t", 0, 1, "train", "h", "1", "tokens", 0, score=Score(0.0, True))


def _deep(levels: int) -> Trajectory:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return Trajectory(_rollout(), tools={"d": ({"x": value},)})


def _no_tokens() -> tuple[Any, Any, Any]:
    return np.empty(0, np.int32), np.empty(0, np.bool_), np.empty(0, np.float32)
