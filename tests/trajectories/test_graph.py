"""The promise of the token graph, by example and over random message trees."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.trajectories.errors import GraphError
from palestra.trajectories.graph import Segment, TokenGraph
from palestra.trajectories.model import FloatArray, IntArray, Message, Node

USER, TOOL, REPLY = Message("user", "q"), Message("tool", "o"), Message("assistant", "a")


def ids(*tokens: int) -> IntArray:
    return np.array(tokens, np.int32)


def probs(count: int) -> FloatArray:
    return -np.arange(1, count + 1, dtype=np.float32)


def commit(graph: TokenGraph, prompt: IntArray, sampled: IntArray, *ends: int) -> int:
    segments = [Segment(USER, end) for end in ends]
    return graph.commit(prompt, segments, REPLY, sampled, probs(len(sampled)))


class TestExamples:
    def test_turns_in_a_row_make_one_path_and_store_each_token_once(self) -> None:
        graph = TokenGraph()
        first = commit(graph, ids(1, 2, 3), ids(4, 5), 2)
        second = commit(graph, ids(1, 2, 3, 4, 5, 6, 7), ids(8), 6)
        assert [n.token_ids.tolist() for n in graph.path(second)] == [[1, 2], [3, 4, 5], [6], [7, 8]]
        assert [n.sampled.tolist() for n in graph.path(second)] == [
            [False, False],
            [False, True, True],
            [False],
            [False, True],
        ]
        assert graph.path(second)[1].node_id == first
        assert list(graph.leaves()) == [second]
        assert graph.path_length(second) == 8

    def test_a_retry_is_a_sibling_under_the_same_prompt(self) -> None:
        graph = TokenGraph()
        first = commit(graph, ids(1, 2, 3), ids(4), 2)
        retry = commit(graph, ids(1, 2, 3), ids(5), 2)
        assert graph.nodes[first].parent == graph.nodes[retry].parent
        assert graph.children(graph.nodes[first].parent) == [first, retry]
        assert len(graph) == 3

    def test_an_identical_render_shares_nodes(self) -> None:
        graph = TokenGraph()
        commit(graph, ids(1, 2, 3), ids(4), 2)
        second = commit(graph, ids(1, 2, 3, 4, 5), ids(6), 2, 5)
        assert len(graph) == 4
        assert graph.path_ids(second).tolist() == [1, 2, 3, 4, 5, 6]

    def test_a_rewritten_history_forks_at_the_node_of_the_first_token_that_differs(self) -> None:
        graph = TokenGraph()
        commit(graph, ids(1, 2, 3), ids(4, 5), 2)
        fork = commit(graph, ids(1, 2, 3, 4, 9, 6), ids(7), 2, 6)
        assert [n.token_ids.tolist() for n in graph.path(fork)] == [[1, 2], [3, 4, 9, 6], [7]]
        assert not graph.path(fork)[1].sampled.any(), "tokens under a rewritten reply were not sampled there"

    def test_a_sub_agent_has_a_root_of_its_own(self) -> None:
        graph = TokenGraph()
        commit(graph, ids(1, 2), ids(3), 2)
        commit(graph, ids(8, 9), ids(3), 2)
        assert [n.node_id for n in graph.nodes if n.parent is None] == graph.children(None) == [0, 2]

    def test_the_deepest_prefix_is_found_behind_a_longer_child_that_leads_nowhere(self) -> None:
        graph = TokenGraph()
        commit(graph, ids(1), ids(2, 3), 1)
        deep = commit(graph, ids(1, 2, 3, 4, 5), ids(6), 5)
        commit(graph, ids(1), ids(2, 3, 4), 1)
        assert graph.deepest_prefix(ids(1, 2, 3, 4, 5, 6, 7)) == deep

    def test_after_a_lost_reply_the_history_goes_on_from_its_retry(self) -> None:
        graph = TokenGraph()
        commit(graph, ids(1), ids(2), 1)
        retry = commit(graph, ids(1), ids(2), 1)
        assert graph.deepest_prefix(ids(1, 2, 3)) == retry

    def test_below_a_named_node_the_deepest_prefix_is_the_same(self) -> None:
        graph = TokenGraph()
        first = commit(graph, ids(1), ids(2), 1)
        second = commit(graph, ids(1, 2, 3), ids(4), 3)
        history = ids(1, 2, 3, 4, 5)
        assert {graph.deepest_prefix(history, after) for after in (None, first, second)} == {second}

    def test_a_reply_without_tokens_is_recorded(self) -> None:
        graph = TokenGraph()
        node = commit(graph, ids(1, 2), ids(), 2)
        assert graph.path_ids(node).tolist() == [1, 2]
        assert not graph.nodes[node].sampled.any()


class TestWhatIsRecordedIsOurs:
    def test_the_caller_may_reuse_its_arrays(self) -> None:
        graph, prompt, sampled, logprobs = TokenGraph(), ids(1, 2), ids(3), probs(1)
        node = graph.commit(prompt, [Segment(USER, 2)], REPLY, sampled, logprobs)
        prompt[:], sampled[:], logprobs[:] = 0, 0, 0
        assert graph.path_ids(node).tolist() == [1, 2, 3]
        assert graph.nodes[node].logprobs.tolist() == [-1.0]

    def test_no_node_keeps_a_whole_prompt_alive(self) -> None:
        graph, prompt = TokenGraph(), ids(*range(100))
        for _ in range(5):
            commit(graph, prompt, ids(7), len(prompt) - 1)
            prompt = np.concatenate([prompt, ids(7, 8, 9)])
        assert all(n.token_ids.base is None and n.logprobs.base is None for n in graph.nodes)
        assert sum(len(n.token_ids) for n in graph.nodes) == len(prompt) - 2

    def test_wider_arrays_are_narrowed(self) -> None:
        graph = TokenGraph()
        prompt, sampled = np.array([1, 2]), np.array([3])
        node = graph.commit(prompt, [Segment(USER, 1)], REPLY, sampled, np.array([-0.5]))
        assert {n.token_ids.dtype for n in graph.nodes} == {np.dtype(np.int32)}
        assert graph.nodes[node].logprobs.dtype == np.float32


class TestRefusals:
    @pytest.mark.parametrize(
        ("ends", "logprobs", "versions", "says"),
        [
            ([2], 2, [(0, 0)], "1 sampled tokens came with 2 log-probabilities"),
            ([3], 1, [(0, 0)], "ends at 3, past the prompt's 2"),
            ([2, 1], 1, [(0, 0)], "in the order of the prompt"),
            ([-1], 1, [(0, 0)], "in the order of the prompt"),
            ([2], 1, [], "the first starts at 0"),
            ([2], 1, [(1, 0)], "the first starts at 0"),
            ([2], 1, [(0, 0), (0, 1)], "each later one further on"),
        ],
    )
    def test_a_call_that_does_not_add_up_leaves_no_trace(
        self, ends: list[int], logprobs: int, versions: list[tuple[int, int]], says: str
    ) -> None:
        graph = TokenGraph()
        segments = [Segment(USER, end) for end in ends]
        with pytest.raises(GraphError, match=says):
            graph.commit(ids(1, 2), segments, REPLY, ids(3), probs(logprobs), versions)
        assert len(graph) == 0

    @pytest.mark.parametrize(
        ("node", "says"),
        [
            (Node(1, None, USER, ids(1), np.array([False]), probs(0)), "out of order"),
            (Node(0, 0, USER, ids(1), np.array([False]), probs(0)), "not on record"),
            (Node(0, -1, USER, ids(1), np.array([False]), probs(0)), "not on record"),
            (Node(0, None, USER, ids(1), np.array([True]), probs(0)), "1 sampled tokens, 0 logprobs"),
        ],
    )
    def test_nodes_that_do_not_form_a_graph_are_refused(self, node: Node, says: str) -> None:
        with pytest.raises(GraphError, match=says):
            TokenGraph([node])

    @pytest.mark.parametrize("prompt", [ids(1, 2, 9, 5, 6), ids(9, 2, 3, 4, 5), ids(1, 2), ids()])
    def test_a_prompt_that_does_not_continue_the_named_node_leaves_no_trace(self, prompt: IntArray) -> None:
        graph = TokenGraph()
        node = commit(graph, ids(1, 2, 3), ids(4), 2)
        with pytest.raises(GraphError, match=f"do not continue node {node}"):
            graph.commit(prompt, [Segment(TOOL, len(prompt))], REPLY, ids(7), probs(1), after=node)
        assert len(graph) == 2 and list(graph.leaves()) == [node]
        assert graph.deepest_prefix(ids(1, 2, 3, 4, 5)) == node
        assert commit(graph, ids(1, 2, 3, 4, 5), ids(6), 5) == 3


class Asked(NamedTuple):
    """A call as the engine saw it."""

    prompt: IntArray
    sampled: IntArray
    node: int


@st.composite
def prompts_after(draw: st.DrawFn, asked: list[Asked]) -> IntArray:
    """A continuation, a retry, a rewritten history or a new root. Tokens are few, so that they collide."""
    tokens = draw(st.lists(st.integers(0, 2), min_size=1, max_size=6))
    if not asked or draw(st.integers(0, 4)) == 0:
        return ids(*tokens)
    before = draw(st.sampled_from(asked))
    seen = np.concatenate([before.prompt, before.sampled])
    kind = draw(st.sampled_from(["continue", "retry", "rewrite"]))
    if kind == "retry":
        return before.prompt
    keep = len(seen) if kind == "continue" else draw(st.integers(0, len(seen)))
    return np.concatenate([seen[:keep], ids(*tokens)])


@st.composite
def recorded(draw: st.DrawFn) -> tuple[TokenGraph, list[Asked]]:
    graph, asked = TokenGraph(), list[Asked]()
    for _ in range(draw(st.integers(1, 8))):
        prompt = draw(prompts_after(asked))
        sampled = ids(*draw(st.lists(st.integers(0, 2), max_size=4)))
        ends = sorted(draw(st.lists(st.integers(0, len(prompt)), max_size=3)))
        before, shared = _stored(graph), _longest_recorded_prefix(graph, prompt)
        node = commit(graph, prompt, sampled, *ends)
        assert _stored(graph) - before == len(prompt) - shared + len(sampled), (
            "a known token was stored again"
        )
        asked.append(Asked(prompt, sampled, node))
    return graph, asked


def _stored(graph: TokenGraph) -> int:
    return sum(len(n.token_ids) for n in graph.nodes)


def _longest_recorded_prefix(graph: TokenGraph, prompt: IntArray) -> int:
    paths = [graph.path_ids(n.node_id).tolist() for n in graph.nodes]
    return max((len(p) for p in paths if p == prompt[: len(p)].tolist()), default=0)


@settings(deadline=None)
@given(recorded())
def test_every_path_is_what_the_engine_saw_and_sampled(made: tuple[TokenGraph, list[Asked]]) -> None:
    graph, asked = made
    again = TokenGraph(graph.nodes)
    for call in asked:
        node = graph.nodes[call.node]
        assert again.path_ids(call.node).tolist() == graph.path_ids(call.node).tolist()
        assert graph.path_ids(call.node).tolist() == [*call.prompt, *call.sampled]
        assert node.token_ids[node.sampled].tolist() == call.sampled.tolist()
        assert node.logprobs.tolist() == probs(len(call.sampled)).tolist()
    assert sum(int(n.sampled.sum()) for n in graph.nodes) == sum(len(c.sampled) for c in asked)


@settings(deadline=None)
@given(recorded())
def test_a_graph_is_its_nodes(made: tuple[TokenGraph, list[Asked]]) -> None:
    graph, asked = made
    again = TokenGraph(graph.nodes)
    assert list(again.leaves()) == list(graph.leaves())
    assert [again.path_length(c.node) for c in asked] == [len(c.prompt) + len(c.sampled) for c in asked]
