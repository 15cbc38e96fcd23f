"""Messages between two replies that come back joined, split or moved are the same; others are not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.harness_proxy.history import History
from palestra.harness_proxy.runs import same_run, same_text
from palestra.trajectories.model import Media, Message


def user(*texts: str) -> list[Message]:
    return [Message("user", text) for text in texts]


def result(text: str, call_id: str | None = None) -> Message:
    return Message("tool", text, tool_call_id=call_id)


@given(st.text("ab \n", max_size=20), st.lists(st.integers(0, 20), max_size=4), st.lists(st.integers(0, 20)))
def test_text_cut_anywhere_is_the_same(text: str, cuts: list[int], others: list[int]) -> None:
    def pieces(at: list[int]) -> list[str]:
        edges = [0, *sorted(min(i, len(text)) for i in at), len(text)]
        return [text[a:b] for a, b in zip(edges, edges[1:], strict=False)]

    assert same_text(pieces(cuts), pieces(others))


@given(st.lists(st.text("ab ", max_size=4)), st.lists(st.text("ab ", max_size=4)))
def test_only_whitespace_at_a_cut_is_forgiven(one: list[str], other: list[str]) -> None:
    if same_text(one, other):
        assert "".join("".join(one).split()) == "".join("".join(other).split())


def test_many_small_pieces_are_compared_in_linear_time() -> None:
    whole = "ab " * 20_000
    assert same_text([whole], list(whole))
    assert not same_text([whole], [*whole, "c"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["def f():\n    return 1"], ["def f():\n  return 1"]),
        (["a b"], ["ab"]),
        (["a", "b"], ["b", "a"]),
        (["a"], ["a", "a"]),
        (["a"], []),
    ],
)
def test_other_texts_differ(old: list[str], new: list[str]) -> None:
    assert not same_text(old, new)


def test_roles_results_and_images_keep_their_places() -> None:
    image = Media("a" * 64, "image/png", 0)
    assert same_run([result("1", "x"), *user("a b")], [result("1", "y"), *user("a", "b")])
    assert not same_run([result("1", "x"), result("2", "y")], [result("12", "x")])
    assert not same_run([result("1"), result("2")], [result("12")])
    assert not same_run([Message("system", "a"), *user("b")], user("a", "b"))
    assert not same_run(user("a"), [Message("user", "a", media=(image,))])
    assert same_run(
        [Message("user", "ab", media=(image,))], [Message("user", "a", media=(image,)), *user("b")]
    )


def walk(history: History, *messages: Message) -> Any:
    return history.walk(None, list(messages), lambda turn: [turn])


def test_a_history_that_joins_what_was_split_goes_on_from_the_reply() -> None:
    history = History()
    first, second = Message("assistant", "one"), Message("assistant", "two")
    history.record(walk(history, *user("a", "b")), first, 0)
    history.record(walk(history, *user("a\n\nb"), first, *user("c d")), second, 1)
    point = walk(history, *user("a", "b"), first, *user("c", "d"), second, *user("e"))
    reply, tail = point.since_reply()
    assert reply is not None and reply.node_id == 1
    assert [p.message for p in tail] == user("e")


def test_a_run_that_departs_in_the_middle_is_read_from_its_beginning() -> None:
    """What was sent before is known up to the second message, where the new history joins it with the first."""
    history = History()
    reply = Message("assistant", "one")
    history.record(walk(history, Message("system", "s"), *user("a", "b", "c")), reply, 0)
    point = walk(history, Message("system", "s"), *user("a", "b c"), reply)
    assert point.node_id == 0


def test_an_empty_message_may_be_lost() -> None:
    history = History()
    reply = Message("assistant", "one")
    history.record(walk(history, *user("a", "")), reply, 0)
    assert walk(history, *user("a"), reply).node_id == 0


def test_a_longer_run_is_another_place() -> None:
    history = History()
    history.record(walk(history, *user("a")), Message("assistant", "one"), 0)
    point = walk(history, *user("a", "b"))
    assert point.since_reply()[0] is None and [m.content for m in point.messages()] == ["a", "b"]
