from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.evaluation.conversation import SHADES, Conversation, Piece, pieces, read
from palestra.evaluation.errors import ReportError
from palestra.trajectories.model import Message, ToolCall, Trajectory

Decode = Callable[[Sequence[int]], str]


def decode_utf8(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def decode_words(ids: Sequence[int]) -> str:
    """Like SentencePiece: the space that starts a text is dropped."""
    return "".join(f" w{i}" for i in ids).removeprefix(" ")


def shown(conversation: Conversation) -> list[int]:
    return [view.node.node_id for branch in conversation.branches for view in branch.messages]


@given(st.text(max_size=60).filter(lambda t: t.isprintable()))
def test_pieces_join_to_the_text_and_keep_every_token(text: str) -> None:
    ids = list(text.encode())
    found = list(pieces(ids, [-0.5] * len(ids), decode_utf8))
    assert "".join(p.text for p in found) == text
    assert [i for p in found for i in p.token_ids] == ids
    assert sum(p.logprob or 0.0 for p in found) == pytest.approx(-0.5 * len(ids))


@given(st.binary(max_size=60))
def test_tokens_that_are_no_text_are_kept_all_the_same(raw: bytes) -> None:
    found = list(pieces(list(raw), None, decode_utf8))
    assert [i for p in found for i in p.token_ids] == list(raw)
    assert all(p.logprob is None for p in found)


def test_one_character_of_several_tokens_is_one_piece() -> None:
    found = list(pieces(list("aé😀".encode()), [-1.0] * 7, decode_utf8))
    assert [(p.text, len(p.token_ids), p.logprob) for p in found] == [
        ("a", 1, -1.0),
        ("é", 2, -2.0),
        ("😀", 4, -4.0),
    ]


def test_spaces_survive_a_tokenizer_that_drops_the_first_one() -> None:
    assert [p.text for p in pieces([1, 2, 3], None, decode_words)] == ["w1", " w2", " w3"]


@pytest.mark.parametrize(
    ("logprob", "shade"), [(None, 0), (0.0, 0), (-1e-5, 0), (-0.6931, 4), (-30.0, SHADES)]
)
def test_the_shade_follows_the_probability(logprob: float | None, shade: int) -> None:
    assert Piece("x", (1,), logprob).shade == shade


def test_given_tokens_are_never_shown_as_sampled(write: Callable[..., Trajectory], decode: Decode) -> None:
    (branch,) = read(write("How many?", "Let me look."), None, decode).branches
    reply = branch.messages[-1]
    assert "".join(p.text for p in reply.pieces if p.logprob is None) == "<assistant>"
    assert "".join(p.text for p in reply.pieces if p.logprob is not None) == 'Let me look.{"sql": "SELECT 1"}'


def test_without_a_decoder_there_are_no_pieces(write: Callable[..., Trajectory]) -> None:
    (branch,) = read(write("How many?", "Let me look."), None, None).branches
    assert branch.messages[-1].pieces == []


def test_a_step_sits_at_its_tool_call_with_its_advantage(
    write: Callable[..., Trajectory], decode: Decode
) -> None:
    (branch,) = read(write("q", "a"), np.array([0.5], np.float32), decode).branches
    (view,) = branch.messages[-1].tool_calls[0].steps
    assert (view.step.index, view.advantage, view.observation) == (0, 0.5, "result of q")
    assert branch.messages[-1].steps == []
    assert branch.messages[-1].all_steps == [view]


def test_advantages_of_another_length_are_refused(write: Callable[..., Trajectory], decode: Decode) -> None:
    with pytest.raises(ReportError, match=r"1 steps and advantages of shape \(2,\)"):
        read(write("q", "a"), np.zeros(2, np.float32), decode)


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [
        ('{"sql": "a\\nb", "n": 3}', [("sql", "a\nb"), ("n", "3")]),
        ('{"nested": {"a": [1, null]}}', [("nested", '{"a":[1,null]}')]),
        ("{}", []),
        ('{"sql": "SEL', None),
        ("[1, 2]", None),
        ("[" * 100_000, None),
        ("", None),
    ],
)
def test_arguments_of_any_text(
    write: Callable[..., Trajectory], raw: str, arguments: list[tuple[str, str]] | None
) -> None:
    (branch,) = read(write("q", "a", raw), None, None).branches
    call = branch.messages[-1].tool_calls[0]
    assert (call.raw, call.arguments) == (raw, arguments)


def test_steps_without_a_recorded_call_are_not_lost(recorder: Any, decode: Decode) -> None:
    recorder.call([Message("user", "q")], Message("assistant", "a"))
    recorder.step(None, None, "set up", "ready")
    recorder.step(7, None, "ghost", "boo")
    loose = read(recorder.trajectory(), None, decode).loose_steps
    assert [view.step.action for view in loose] == ["set up", "ghost"]


def test_each_message_appears_once_and_the_delivered_conversation_first(
    recorder: Any,
    decode: Decode,
) -> None:
    question, lost, kept = Message("user", "q"), Message("assistant", "lost"), Message("assistant", "kept")
    recorder.call([question], lost, delivered=False, role="discarded")
    recorder.call([question], kept)
    recorder.call([Message("user", "side")], Message("assistant", "summary"), role="subagent")
    trajectory = recorder.trajectory()
    conversation = read(trajectory, None, decode)
    assert sorted(shown(conversation)) == [node.node_id for node in trajectory.nodes]
    first, second, third = conversation.branches
    assert [view.node.message.content for view in first.messages] == ["q", "kept"]
    assert (second.label, second.after, second.main) == ("discarded, reply not delivered", 0, False)
    assert (third.label, third.after, third.main) == ("subagent", None, False)


def test_the_closing_tokens_of_a_reply_are_no_second_message(recorder: Any, decode: Decode) -> None:
    question, reply, more = Message("user", "q"), Message("assistant", "a"), Message("user", "more")
    recorder.call([question], reply)
    recorder.call([question, reply, more], Message("assistant", "b"))
    assert len(recorder.graph) == 5
    (branch,) = read(recorder.trajectory(), None, decode).branches
    assert [view.node.message.content for view in branch.messages] == ["q", "a", "more", "b"]


def test_text_only_capture_shows_messages(recorder: Any, decode: Decode) -> None:
    recorder.call([Message("user", "q")], Message("assistant", "", tool_calls=(ToolCall("c", "f", "{}"),)))
    branch = read(recorder.trajectory(), None, None).branches[0]
    assert [t.name for t in branch.messages[-1].tool_calls] == ["f"]
