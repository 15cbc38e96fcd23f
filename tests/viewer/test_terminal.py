"""What a person is shown of a trajectory, with and without colour."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from palestra.trajectories.graph import Segment, TokenGraph
from palestra.trajectories.model import (
    Call,
    Drift,
    EnvStep,
    Failure,
    IntArray,
    Media,
    Message,
    Rollout,
    Sampling,
    Score,
    ToolCall,
    Trajectory,
)
from palestra.viewer.terminal import show, summary_table

ROLLOUT = Rollout(
    rollout_id="run-1/sql-3/0",
    run_id="run-1",
    group_id="run-1/sql-3",
    task_id="sql-3",
    sample_index=0,
    attempt=1,
    mode="train",
    harness="tool_loop",
    harness_version="1",
    capture_level="tokens",
    seed=7,
    score=Score(0.5, True, {"exact": 0.0, "columns": 1.0}, "sql_strict", "2"),
    timings={"setup": 0.1, "total": 2.5},
    policy_versions=(3, 4),
    findings=("attempt 1 lost its sandbox",),
)
FAILED = replace(
    ROLLOUT, score=None, failure=Failure("sandbox", "setup", "no space left on device", retryable=True)
)
UNJUDGED = replace(ROLLOUT, score=Score(None, False, evidence="the gold query does not run"))


def encode(text: str) -> IntArray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


def decode(ids: Sequence[int]) -> str:
    return bytes(ids).decode("utf-8", "replace")


class Session:
    """Builds a trajectory in which each token is a byte."""

    def __init__(self) -> None:
        self.graph, self.calls, self.steps = TokenGraph(), list[Call](), list[EnvStep]()

    def turn(self, prompt: str, given: Message, reply: str, **facts: object) -> str:
        seq = len(self.calls)
        sampled = encode(reply)
        logprobs = np.full(len(sampled), -0.5, np.float32)
        message = Message("assistant", reply)
        segments = [Segment(given, len(prompt.encode()) - 1)]
        node = self.graph.commit(encode(prompt), segments, message, sampled, logprobs)
        sampling = Sampling()
        call = Call(
            seq, "openai_chat", "", None, "bridge", {}, sampling, "processed", 3, "stop", "ok", node, 0, 0, 1
        )  # fmt: skip
        self.calls.append(replace(call, **facts))  # type: ignore[arg-type]
        return prompt + reply

    def step(self, call: int | None, action: str = "act", **facts: object) -> None:
        index = len(self.steps)
        step = EnvStep(index, call, None, action, f"seen {index}", 0.0, False, False, "state", "")
        self.steps.append(replace(step, **facts))  # type: ignore[arg-type]

    def trajectory(self, rollout: Rollout = ROLLOUT) -> Trajectory:
        return Trajectory(rollout, tuple(self.graph.nodes), tuple(self.calls), tuple(self.steps))


def two_turns() -> Session:
    session = Session()
    history = session.turn("How many?|", Message("user", "How many?"), "I look.")
    session.step(0)
    session.turn(f"{history}Seven.|", Message("tool", "Seven.", tool_call_id="call_0"), "7")
    session.step(1, reward=1.0, terminated=True, anchor="a very long name of a state")
    return session


def printed(
    trajectory: Trajectory, *, colour: bool = False, encoding: str = "utf-8", **options: object
) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(
        file=file, width=100, force_terminal=colour, color_system="standard" if colour else None
    )
    show(trajectory, console=console, **options)  # type: ignore[arg-type]
    file.flush()
    return raw.getvalue().decode(encoding)


class TestHeader:
    def test_a_scored_rollout(self) -> None:
        text = printed(Trajectory(ROLLOUT))
        for fact in (
            "rollout run-1/sql-3/0",
            "0.5  (exact 0, columns 1)",
            "sql_strict 2",
            "tool_loop 1, capture level tokens",
            "version 3 to 4",
            "setup 0.10, total 2.50",
            "attempt 1 lost its sandbox",
        ):
            assert fact in text

    def test_a_failure_stands_first_and_is_no_zero(self) -> None:
        text = printed(Trajectory(FAILED))
        assert "FAILED" in text.splitlines()[1]
        assert "in sandbox at setup, worth a retry: no space left on device" in text
        assert "none: a failure is not a zero" in text
        assert "\x1b[1;31m" in printed(Trajectory(FAILED), colour=True)

    def test_an_outcome_that_was_not_judged_is_no_zero(self) -> None:
        text = printed(Trajectory(UNJUDGED))
        assert "none: the outcome could not be judged" in text and "the gold query does not run" in text

    def test_a_truncated_rollout(self) -> None:
        assert "a budget ran out" in printed(Trajectory(replace(ROLLOUT, truncated=True)))


class TestBranches:
    def test_turns_in_order_with_their_steps(self) -> None:
        text = printed(two_turns().trajectory(), advantages=np.array([0.25, -1.5], np.float32))
        places = [
            text.index(part) for part in ("How many?", "> I look.", "step 0", "Seven.", "> 7", "step 1")
        ]
        assert places == sorted(places)
        assert "step 0  reward 0  advantage +0.250  valid  anchor state" in text
        assert "step 1  reward 1  advantage -1.500  valid  anchor a very long n...  terminated" in text
        assert "branch 1 of 1: 4 messages, 25 tokens" in text
        assert "8 tokens, 7 sampled, mean log-probability -0.50, lowest -0.50" in text

    def test_what_went_wrong_in_a_call_is_said(self) -> None:
        session = Session()
        facts = {"finish_reason": "length", "parse_status": "malformed", "delivered": False, "retry_of": 0}
        session.turn("q|", Message("user", "q"), "a", role="subagent", drift=Drift("message", 4), **facts)
        session.step(0, valid_action=False, truncated=True)
        text = " ".join(printed(session.trajectory()).split())
        for fact in (
            "length",
            "parse malformed",
            "subagent",
            "retry of call 0",
            "drift: message at 4",
            "NOT DELIVERED",
            "INVALID",
            "truncated",
        ):
            assert fact in text

    def test_a_second_branch_shows_only_what_is_new(self) -> None:
        session = Session()
        session.turn("How many?|", Message("user", "How many?"), "I look.")
        session.turn("How many?|", Message("user", "How many?"), "I guess.")
        text = printed(session.trajectory())
        assert text.count("How many?") == 1
        assert "branch 2 of 2" in text and "goes on from node 0; what comes before" in text

    def test_steps_without_a_reply_are_not_lost(self) -> None:
        session = two_turns()
        session.step(None, "submit")
        session.step(99, "stray")
        text = printed(session.trajectory())
        assert text.index("no recorded reply") < text.index("did  submit") < text.index("did  stray")

    def test_several_steps_of_one_reply(self) -> None:
        session = two_turns()
        session.step(0, "second of call 0")
        text = printed(session.trajectory(), advantages=np.array([0, 1, 2], np.float32))
        assert text.index("step 2  reward 0  advantage +2.000") < text.index("step 1")

    def test_all_parts_of_a_message(self) -> None:
        message = Message(
            "assistant",
            "Look.",
            "I think.",
            (ToolCall("call_1", "query", '{"sql": "SELECT 1"}'),),
            media=(Media("ab" * 32, "image/png", 2),),
        )
        graph = TokenGraph()
        graph.commit(encode("q"), [], message, encode("a"), np.zeros(1, np.float32))
        text = printed(Trajectory(ROLLOUT, tuple(graph.nodes)))
        assert "[reasoning] I think." in text and "Look." in text
        assert '[tool call call_1] query {"sql": "SELECT 1"}' in text
        assert "[image/png abababababab at character 2]" in text

    def test_a_long_message_is_cut_unless_all_is_asked_for(self) -> None:
        session = Session()
        session.turn("q|", Message("user", "x" * 500 + "middle" + "y" * 500), "a")
        assert "906 characters not shown" in printed(session.trajectory(), max_chars=100)
        assert "middle" in printed(session.trajectory(), max_chars=None).replace("\n    ", "")


class TestTokens:
    def test_tokens_are_shown_as_the_engine_saw_them(self) -> None:
        text = printed(two_turns().trajectory(), tokenizer=decode)
        assert "    |\n  > I look.\n" in text, "the generation prompt was given, the reply sampled"

    def test_colour_is_added_only_where_there_is_colour(self) -> None:
        trajectory = two_turns().trajectory()
        assert "\x1b" not in printed(trajectory, tokenizer=decode)
        assert "probability of" not in printed(trajectory, tokenizer=decode)
        coloured = printed(trajectory, tokenizer=decode, colour=True)
        assert "probability of a sampled token" in coloured
        assert "\x1b[36mI\x1b[0m" in coloured, "e^-0.5 is 0.61"


class TestHostileText:
    HOSTILE = "\x1b[2J\x1b]0;owned\x07 [bold red]x[/bold red] :smile: \u202e \ud800"

    @pytest.mark.parametrize("colour", [False, True])
    def test_it_is_printed_not_obeyed(self, colour: bool) -> None:
        session = Session()
        session.turn("q|", Message(self.HOSTILE, self.HOSTILE, tool_call_id=self.HOSTILE), "a")
        session.step(0, self.HOSTILE, observation=self.HOSTILE, anchor=self.HOSTILE)
        failure = Failure("env", self.HOSTILE, self.HOSTILE)
        ids = {"rollout_id": self.HOSTILE, "task_id": self.HOSTILE, "findings": (self.HOSTILE,)}
        rollout = replace(FAILED, failure=failure, **ids)  # type: ignore[arg-type]
        text = printed(session.trajectory(rollout), colour=colour)
        assert "\x1b[2J" not in text and "\x1b]" not in text and "\x07" not in text and "\u202e" not in text
        assert "\\x1b[2J" in text and "[bold red]x[/bold red]" in text and ":smile:" in text

    def test_a_terminal_of_ascii_is_enough(self) -> None:
        session = Session()
        session.turn("q|", Message("user", "Zürich 你好"), "a")
        assert "Z\\xfcrich \\u4f60\\u597d" in printed(session.trajectory(), encoding="ascii")


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 1), ()])
def test_advantages_must_be_one_for_each_step(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="2 steps"):
        printed(two_turns().trajectory(), advantages=np.zeros(shape, np.float32))


def test_a_table_of_rollouts() -> None:
    file = io.StringIO()
    console = Console(file=file, width=160, color_system=None)
    bare = replace(ROLLOUT, rollout_id="[red]bare", timings={}, findings=(), truncated=True)
    console.print(summary_table([ROLLOUT, FAILED, UNJUDGED, bare]))
    rows = [line.split() for line in file.getvalue().splitlines() if line.strip()]
    assert rows[0] == ["rollout", "reward", "end", "seconds", "findings"]
    assert rows[2][1:] == ["0.5", "finished", "2.5", "1"]
    assert rows[3][1:] == ["none", "FAILED", "in", "sandbox", "at", "2.5", "1"] and rows[4] == ["setup"]
    assert rows[5][1:] == ["none", "not", "judged", "2.5", "1"]
    assert rows[6] == ["[red]bare", "0.5", "truncated", "-", "-"]
