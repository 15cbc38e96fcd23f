"""Which recorded reply a history continues, and where one that does not match departs."""

from typing import Any

import pytest

from palestra.harness_proxy.history import History, Point
from palestra.trajectories.model import Drift, Message, ToolCall
from palestra.trajectories.normal import normal_form

SYSTEM, USER = Message("system", "Be careful."), Message("user", "How many?")


def walk(
    history: History, *messages: Message, tools: str | None = None, reads: list[Any] | None = None
) -> Point:
    def read(turn: Message) -> list[Message]:
        if reads is not None:
            reads.append(turn)
        return [turn]

    return history.walk(tools, list(messages), read)


def said(text: str = "", *calls: tuple[str, str], reasoning: str | None = None) -> Message:
    made = tuple(ToolCall(f"call_{text}_{i}", name, arguments) for i, (name, arguments) in enumerate(calls))
    return Message("assistant", text, reasoning, made)


def test_a_reply_is_found_again_and_the_tail_is_what_is_new() -> None:
    history = History()
    reply = said("Forty-two.")
    history.record(walk(history, SYSTEM, USER), reply, 5)
    found, tail = walk(history, SYSTEM, USER, reply, USER).since_reply()
    assert found is not None and found.node_id == 5
    assert [p.message for p in tail] == [USER]


def test_messages_are_the_whole_history() -> None:
    history = History()
    point = walk(history, SYSTEM, USER, said("Foreign."), USER)
    assert point.messages() == [SYSTEM, USER, said("Foreign."), USER]
    assert point.since_reply()[0] is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": 2}', '{"b":2,"a":1}'),
        ('{"n": 10000.0}', '{"n":10000}'),
        ('{"a": null, "b": "\\u00e9"}', '{"b":"é"}'),
        ('{"p": "a\\/b"}', '{"p": "a/b"}'),
        ("", " "),
    ],
)
def test_arguments_that_mean_the_same(one: str, other: str) -> None:
    assert normal_form(said("x", ("f", one))) == normal_form(said("x ", ("f", other)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1}', '{"a": "1"}'),
        ('{"a": [1, 2]}', '{"a": [2, 1]}'),
        ('{"a": 1', '{"a": 1}'),
        ('{"a": 1.5}', '{"a": 1}'),
    ],
)
def test_arguments_that_do_not(one: str, other: str) -> None:
    assert normal_form(said("x", ("f", one))) != normal_form(said("x", ("f", other)))


def test_tool_call_ids_outweigh_text_and_arguments() -> None:
    history = History()
    reply = said("Look.", ("f", '{"a": '))
    history.record(walk(history, USER), reply, 1)
    repaired = Message("assistant", "", None, (ToolCall(reply.tool_calls[0].id, "f", '{"a": 1}'),))
    assert walk(history, USER, repaired).node_id == 1


def test_lost_ids_fall_back_to_the_normal_form() -> None:
    history = History()
    history.record(walk(history, USER), said("Look.", ("f", '{"a":1}')), 1)
    renamed = Message("assistant", "Look.\n", None, (ToolCall("other", "f", '{ "a": 1 }'),))
    assert walk(history, USER, renamed).node_id == 1


def test_a_dropped_parallel_call_is_a_change() -> None:
    history = History()
    reply = said("", ("f", "{}"), ("g", "{}"))
    history.record(walk(history, USER), reply, 1)
    point = walk(history, USER, Message("assistant", "", None, reply.tool_calls[:1]))
    assert point.node_id is None and point.drift == Drift("message", 1)


def test_of_equal_siblings_the_latest_is_continued() -> None:
    history = History()
    for node_id in (1, 2):
        history.record(walk(history, USER), said("Same."), node_id)
    assert walk(history, USER, said("Same.")).node_id == 2


def test_reasoning_tells_siblings_apart_and_may_be_dropped() -> None:
    history = History()
    for node_id, reasoning in ((1, "one"), (2, "two")):
        history.record(walk(history, USER), said("Same.", reasoning=reasoning), node_id)
    assert walk(history, USER, said("Same.", reasoning="one\n")).node_id == 1
    assert walk(history, USER, said("Same.")).node_id == 2
    assert walk(history, USER, said("Same.", reasoning="three")).node_id is None


def test_the_same_reply_under_other_tools_is_a_drift() -> None:
    history = History()
    history.record(walk(history, USER, tools="a"), said("x", ("f", "{}")), 1)
    assert walk(history, USER, said("x", ("f", "{}")), tools="b").drift == Drift("tools", 0)


def test_a_foreign_turn_is_no_drift() -> None:
    assert walk(History(), USER, said("Few-shot."), USER).up().__next__().drift is None


def test_a_long_history_is_read_once() -> None:
    history = History()
    reads: list[Any] = []
    messages: list[Message] = [SYSTEM, USER]
    for turn in range(50):
        point = walk(history, *messages, reads=reads)
        reply = said(f"Turn {turn}.")
        history.record(point, reply, turn)
        messages += [reply, Message("user", f"Next {turn}")]
    assert len(reads) == 100


def test_interleaved_threads_are_read_once_each() -> None:
    history = History()
    reads: list[Any] = []
    threads = [[Message("system", name)] for name in "abc"]
    for turn in range(20):
        for thread in threads:
            thread.append(Message("user", str(turn)))
            walk(history, *thread, reads=reads)
    assert len(reads) == 3 * 21


def test_a_change_in_the_middle_rereads_from_there() -> None:
    history = History()
    reads: list[Any] = []
    messages = [Message("user", str(i)) for i in range(10)]
    walk(history, *messages)
    walk(history, *messages[:7], USER, *messages[8:], reads=reads)
    assert len(reads) == 3


def test_a_reply_in_pieces_is_one_reply() -> None:
    history = History()
    reply = said("Look here.", ("f", "{}"), ("g", "{}"))
    history.record(walk(history, USER), reply, 1)
    calls = [Message("assistant", "", None, (c,)) for c in reply.tool_calls]
    pieces = [Message("assistant", "Look "), Message("assistant", "here."), *calls]
    assert walk(history, USER, *pieces).node_id == 1
    found, tail = walk(history, USER, *pieces, USER).since_reply()
    assert found is not None and found.node_id == 1 and len(tail) == 1


def test_half_of_a_reply_in_pieces_is_not_the_reply() -> None:
    history = History()
    reply = said("Look here.", ("f", "{}"), ("g", "{}"))
    history.record(walk(history, USER), reply, 1)
    pieces = [Message("assistant", "Look here."), Message("assistant", "", None, reply.tool_calls)]
    assert walk(history, USER, *pieces, USER).since_reply()[0] is not None
    assert walk(history, USER, pieces[0], USER).since_reply()[0] is None


def test_a_message_put_in_before_a_reply_is_not_forgotten() -> None:
    history = History()
    reply = said("Look.", ("f", "{}"))
    history.record(walk(history, USER), reply, 1)
    assert walk(history, USER, Message("assistant", "A note."), reply).node_id is None


def test_two_replies_in_a_row_are_two() -> None:
    history = History()
    first, second = said("One."), said("Two.")
    history.record(walk(history, USER), first, 1)
    history.record(walk(history, USER, first), second, 2)
    assert walk(history, USER, first, second).node_id == 2


def test_a_reply_id_tells_twins_apart() -> None:
    history = History()
    for node_id in (1, 2):
        history.record(walk(history, USER), said("Same."), node_id, f"reply-{node_id}")

    def carried(turn: Message) -> str | None:
        return "reply-1" if turn.role == "assistant" else None

    turns = [USER, said("Same. ")]
    assert history.walk(None, turns, lambda turn: [turn], carried).node_id == 1
    assert history.walk(None, [USER, said("Other.")], lambda turn: [turn], carried).node_id is None


def test_a_conversation_whose_end_is_rewritten_each_time_does_not_push_out_another() -> None:
    history = History()
    reads: list[Any] = []
    other = [Message("user", str(i)) for i in range(20)]
    walk(history, *other)
    for turn in range(10):
        walk(history, USER, *[Message("user", "x")] * turn, Message("user", f"x {' ' * turn}"))
    walk(history, *other, reads=reads)
    assert reads == []


def test_dropped_reasoning_is_spliced_or_forks() -> None:
    for policy, node_id, drift in (("splice", 1, None), ("fork", None, Drift("reasoning", 1))):
        history = History(policy)  # type: ignore[arg-type]
        history.record(walk(history, USER), said("Hi.", reasoning="Hm."), 1)
        point = walk(history, USER, said("Hi."))
        assert (point.node_id, point.drift) == (node_id, drift)
        assert walk(history, USER, said("Hi.", reasoning="Hm.")).node_id == 1


def test_many_assistant_messages_in_a_row_are_read_once_each() -> None:
    history = History()
    history.record(walk(history, USER), said("Never sent back."), 1)
    reads: list[Any] = []
    walk(history, USER, *[Message("assistant", "x")] * 5000, reads=reads)
    assert len(reads) == 5000
