"""Every sampled token of a trained call is trained once, under the prefix that the engine saw."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.trajectories.graph import Segment, TokenGraph
from palestra.trajectories.model import Call, IntArray, Message, Role, Rollout, Sampling, Score, Trajectory
from palestra.trajectories.sample import TRAINED_ROLES, Sample, samples

ROLES: tuple[Role, ...] = ("agent", "subagent", "auxiliary", "compaction", "discarded")
ROLLOUT = Rollout("r", "run", "g", "t", 0, 1, "train", "loop", "1", "tokens", 0, score=Score(1.0, True))


class Asked(NamedTuple):
    prompt: list[int]
    sampled: list[int]
    call: Call


class Session:
    """Commits calls with made-up log-probabilities that name the call and the token."""

    def __init__(self) -> None:
        self.graph, self.asked = TokenGraph(), list[Asked]()

    def call(
        self,
        prompt: list[int],
        sampled: list[int],
        *,
        role: Role = "agent",
        delivered: bool = True,
        version: int = 0,
    ) -> list[int]:
        """Returns the prompt and the reply, as the next prompt begins."""
        seq, segments = len(self.asked), [Segment(Message("user", "q"), max(0, len(prompt) - 1))]
        logprobs = -np.arange(1, len(sampled) + 1, dtype=np.float32) / np.float32(16) - np.float32(seq)
        spans = ((0, version), (2, version + 1))
        reply = Message("assistant", "a")
        node = self.graph.commit(_ids(prompt), segments, reply, _ids(sampled), logprobs, spans)
        self.asked.append(Asked(prompt, sampled, _call(seq, node, role, delivered)))
        return prompt + sampled

    def trajectory(self) -> Trajectory:
        return Trajectory(ROLLOUT, tuple(self.graph.nodes), tuple(a.call for a in self.asked))


def _ids(tokens: list[int]) -> IntArray:
    return np.array(tokens, np.int32)


def _call(seq: int, node: int, role: Role, delivered: bool) -> Call:
    recorded = Call(
        seq, "openai_chat", "", None, "bridge", {}, Sampling(), "processed", 0, "stop", "ok", node, 0, 0, 0
    )  # fmt: skip
    return replace(recorded, role=role, delivered=delivered)


def trained(sample: Sample) -> list[int]:
    return [int(token) for token in sample.ids[sample.loss_mask]]


class TestExamples:
    def test_turns_in_a_row_are_one_sample(self) -> None:
        session = Session()
        history = session.call([1, 2], [3, 4])
        session.call([*history, 5], [6], version=2)
        (sample,) = samples(session.trajectory())
        assert sample.ids.tolist() == [1, 2, 3, 4, 5, 6]
        assert sample.loss_mask.tolist() == [False, False, True, True, False, True]
        assert sample.calls.tolist() == [-1, -1, 0, 0, -1, 1]
        assert sample.versions.tolist() == [-1, -1, 0, 0, -1, 2]
        assert sample.logprobs.tolist() == [0, 0, -0.0625, -0.125, 0, -1.0625]

    def test_an_update_in_the_middle_of_a_reply_changes_the_version_from_its_token_on(self) -> None:
        session = Session()
        session.call([1], [2, 3, 4], version=7)
        (sample,) = samples(session.trajectory())
        assert sample.versions.tolist() == [-1, 7, 7, 8]

    def test_a_shared_turn_is_trained_in_the_first_branch_alone(self) -> None:
        session = Session()
        history = session.call([1], [2])
        session.call([*history, 3], [4])
        session.call([*history, 5], [6])
        first, second = samples(session.trajectory())
        assert (trained(first), trained(second)) == ([2, 4], [6])
        assert second.calls.tolist() == [-1, 0, -1, 2], "context of the second branch, still named"

    def test_both_of_two_delivered_siblings_are_trained(self) -> None:
        session = Session()
        session.call([1], [2])
        session.call([1], [3])
        assert [trained(s) for s in samples(session.trajectory())] == [[2], [3]]

    def test_a_reply_that_was_not_delivered_is_neither_trained_nor_computed(self) -> None:
        session = Session()
        history = session.call([1], [2])
        session.call([*history, 3], [4], delivered=False)
        session.call([*history, 3], [5])
        (sample,) = samples(session.trajectory())
        assert sample.ids.tolist() == [1, 2, 3, 5]

    def test_an_abandoned_tail_is_cut(self) -> None:
        session = Session()
        history = session.call([1], [2])
        session.call([*history, 3], [4], role="discarded")
        (sample,) = samples(session.trajectory())
        assert sample.ids.tolist() == [1, 2]

    def test_a_summary_is_context_of_what_follows_it(self) -> None:
        session = Session()
        history = session.call([1], [2], role="compaction")
        session.call([*history, 3], [4])
        (sample,) = samples(session.trajectory())
        assert trained(sample) == [4]
        assert samples(session.trajectory(), roles={"compaction"})[0].ids.tolist() == [1, 2]

    def test_a_reply_without_tokens_makes_no_sample(self) -> None:
        session = Session()
        session.call([1], [])
        assert samples(session.trajectory()) == []

    def test_a_coalesced_retry_that_was_delivered_is_trained_once(self) -> None:
        session = Session()
        session.call([1], [2], delivered=False)
        node = session.asked[0].call.node_id
        calls = (session.asked[0].call, _call(1, node, "agent", True))
        (sample,) = samples(Trajectory(ROLLOUT, tuple(session.graph.nodes), calls))
        assert (trained(sample), sample.calls.tolist()) == ([2], [-1, 1])
        (sample,) = samples(Trajectory(ROLLOUT, tuple(session.graph.nodes), calls[::-1]))
        assert (trained(sample), sample.calls.tolist()) == ([2], [-1, 1])

    def test_nothing_recorded_is_no_sample(self) -> None:
        assert samples(Trajectory(ROLLOUT)) == []


@st.composite
def sessions(draw: st.DrawFn) -> Session:
    """Turns, retries, rewritten histories and sub-agents over an alphabet so small that they collide."""
    session, tokens = Session(), st.lists(st.integers(0, 2), min_size=1, max_size=4)
    for _ in range(draw(st.integers(1, 8))):
        prompt = draw(tokens)
        kind = draw(st.sampled_from(["new", "rewrite", "retry"])) if session.asked else "new"
        if kind == "rewrite":
            before = draw(st.sampled_from(session.asked))
            seen = before.prompt + before.sampled
            prompt = seen[: draw(st.integers(0, len(seen)))] + prompt
        if kind == "retry":
            prompt = draw(st.sampled_from(session.asked)).prompt
        sampled, role = draw(st.lists(st.integers(0, 2), max_size=4)), draw(st.sampled_from(ROLES))
        session.call(prompt, sampled, role=role, delivered=draw(st.booleans()))
    return session


@settings(deadline=None)
@given(sessions())
def test_each_token_of_a_trained_call_is_trained_once_under_what_the_engine_saw(session: Session) -> None:
    views = samples(session.trajectory())
    carried = [(view, int(seq)) for view in views for seq in set(view.calls[view.loss_mask])]
    wanted = [a.call.seq for a in session.asked if _is_trained(a)]
    assert sorted(seq for _, seq in carried) == wanted, "each trained call in one sample, no other in any"
    for view, seq in carried:
        _, sampled, call = session.asked[seq]
        places = np.flatnonzero(view.loss_mask & (view.calls == seq))
        start, end = int(places[0]), int(places[-1]) + 1
        assert places.tolist() == list(range(start, start + len(sampled)))
        assert view.ids[:end].tolist() == session.asked[seq].prompt + sampled
        recorded = session.graph.nodes[call.node_id].logprobs
        assert view.logprobs[start:end].tolist() == recorded.tolist()


@settings(deadline=None)
@given(sessions())
def test_no_sample_could_be_left_out_or_shortened(session: Session) -> None:
    views = samples(session.trajectory())
    assert all(view.loss_mask[-1] for view in views)
    paths = [view.ids.tolist() for view in views]
    assert len({view.leaf for view in views}) == len(paths)
    for view in views:
        assert view.ids.shape == view.loss_mask.shape == view.logprobs.shape == view.calls.shape
        assert (view.logprobs[view.calls == -1] == 0).all()
        assert ((view.versions == -1) == (view.calls == -1)).all()


def _is_trained(asked: Asked) -> bool:
    return bool(asked.sampled) and asked.call.delivered and asked.call.role in TRAINED_ROLES
