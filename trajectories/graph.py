"""The token graph: every message once, every sampled token once.

A session's calls form a tree. Each node adds the tokens of one message to its parent's path, and

    concat(node.token_ids along the path to a call's node) == the call's prompt ids + its sampled ids

holds for every committed call. A prompt that does not continue a recorded path (a retry, a sub-agent, a
compacted or rewritten history) branches off at the deepest node it still shares, compared token by token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from palestra.trajectories.errors import GraphError
from palestra.trajectories.model import FloatArray, IntArray, Message, Node

_NO_LOGPROBS: FloatArray = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class Segment:
    """A prompt message and the position in the prompt at which its tokens end."""

    message: Message
    end: int


class TokenGraph:
    """Grows by one sampled node per call. Memory is linear in distinct tokens."""

    def __init__(self, nodes: Sequence[Node] = ()) -> None:
        self.nodes: list[Node] = []
        self._children: dict[int | None, list[int]] = {}
        self._lengths: list[int] = []
        self._latest: tuple[int | None, IntArray] = (None, np.empty(0, np.int32))
        for node in nodes:
            _check_node(node)
            self._append(node)

    def __len__(self) -> int:
        return len(self.nodes)

    def path(self, node_id: int) -> list[Node]:
        """Nodes from the root to `node_id`."""
        path: list[Node] = []
        cursor: int | None = node_id
        while cursor is not None:
            path.append(self.nodes[cursor])
            cursor = self.nodes[cursor].parent
        return path[::-1]

    def path_ids(self, node_id: int) -> IntArray:
        """All token ids from the root to the end of `node_id`, shape (path_length(node_id),), read-only."""
        if node_id != self._latest[0]:  # a conversation goes on where it was left
            self._keep_path(node_id, np.concatenate([node.token_ids for node in self.path(node_id)]))
        return self._latest[1]

    def path_length(self, node_id: int) -> int:
        """Number of tokens from the root to the end of `node_id`."""
        return self._lengths[node_id]

    def children(self, node_id: int | None) -> list[int]:
        """Node ids below `node_id`; of the roots for None."""
        return self._children.get(node_id, [])

    def leaves(self) -> Iterator[int]:
        """Node ids without children, in the order they were written."""
        return (node.node_id for node in self.nodes if not self._children.get(node.node_id))

    def deepest_prefix(self, prompt_ids: IntArray, after: int | None = None) -> int | None:
        """The node with the longest path that is a prefix of `prompt_ids`, or None where not even a root is.

        Of equally long ones the latest: where a reply was lost and sampled again, the retry went on. The
        search starts below `after`, whose path the caller knows to be a prefix.
        """
        best = after
        frontier = self._continuing(after, prompt_ids)
        while frontier:
            node_id = frontier.pop()
            best = node_id if best is None else max(best, node_id, key=lambda n: (self._lengths[n], n))
            frontier += self._continuing(node_id, prompt_ids)
        return best

    def commit(
        self,
        prompt_ids: IntArray,
        segments: Sequence[Segment],
        reply: Message,
        sampled_ids: IntArray,
        logprobs: FloatArray,
        versions: Sequence[tuple[int, int]] = ((0, 0),),
        after: int | None = None,
    ) -> int:
        """Record one call: what the engine was given and what it sampled.

        `segments` names the messages that end the prompt, in order. What is on record already is shared; the
        tokens after the last segment (the generation prompt) go to the reply's node, unsampled.

        `after` names a node whose path the prompt is known to continue, and saves comparing it again.

        The arrays are copied: the caller may reuse them, and no node keeps a whole prompt alive.

        Returns the id of the reply's node. Raises GraphError, with nothing recorded, when lengths or spans
        disagree, or the prompt does not continue `after`.
        """
        _check_call(len(prompt_ids), segments, len(sampled_ids), len(logprobs), versions)
        if after is not None and not _same(self.path_ids(after), prompt_ids[: self._lengths[after]]):
            raise GraphError(f"{len(prompt_ids)} prompt tokens, which do not continue node {after}")
        parent = self.deepest_prefix(prompt_ids, after)
        position = self._lengths[parent] if parent is not None else 0
        for segment in segments:
            if segment.end > position:
                parent = self._append_prompt(parent, segment.message, prompt_ids[position : segment.end])
                position = segment.end
        path = np.concatenate([prompt_ids, sampled_ids]).astype(np.int32, copy=False)
        node_id = self._append_reply(parent, reply, path[position:], logprobs, versions)
        self._keep_path(node_id, path)
        return node_id

    def commit_text(self, messages: Sequence[Message], reply: Message) -> int:
        """Record a call of which only the text is known: nodes without tokens, shared where messages are equal.

        Returns the id of the reply's node.
        """
        parent: int | None = None
        for message in messages:
            known = (c for c in self.children(parent) if self.nodes[c].message == message)
            found = next(known, None)
            parent = self._append_text(parent, message) if found is None else found
        return self._append_text(parent, reply)

    def _append_text(self, parent: int | None, message: Message) -> int:
        nothing = np.empty(0, np.int32), np.empty(0, np.bool_), _NO_LOGPROBS
        return self._append(Node(len(self.nodes), parent, message, *nothing))

    def _append_prompt(self, parent: int | None, message: Message, ids: IntArray) -> int:
        mask = np.zeros(len(ids), np.bool_)
        return self._append(
            Node(len(self.nodes), parent, message, np.array(ids, np.int32), mask, _NO_LOGPROBS)
        )

    def _append_reply(
        self,
        parent: int | None,
        reply: Message,
        ids: IntArray,
        logprobs: FloatArray,
        versions: Sequence[tuple[int, int]],
    ) -> int:
        """A node of which the last `len(logprobs)` tokens were sampled."""
        mask = np.zeros(len(ids), np.bool_)
        mask[len(ids) - len(logprobs) :] = True
        logprobs = np.array(logprobs, np.float32)
        return self._append(Node(len(self.nodes), parent, reply, ids.copy(), mask, logprobs, tuple(versions)))

    def _append(self, node: Node) -> int:
        if node.node_id != len(self.nodes):
            raise GraphError(f"node {node.node_id} came out of order, expected {len(self.nodes)}")
        if node.parent is not None and not 0 <= node.parent < node.node_id:
            raise GraphError(f"node {node.node_id} names parent {node.parent}, which is not on record")
        before = self._lengths[node.parent] if node.parent is not None else 0
        self.nodes.append(node)
        self._lengths.append(before + len(node.token_ids))
        self._children.setdefault(node.parent, []).append(node.node_id)
        return node.node_id

    def _keep_path(self, node_id: int, ids: IntArray) -> None:
        ids.flags.writeable = False
        self._latest = (node_id, ids)

    def _continuing(self, parent: int | None, prompt_ids: IntArray) -> list[int]:
        """Children of `parent` whose tokens come next in `prompt_ids`."""
        position = self._lengths[parent] if parent is not None else 0
        return [c for c in self.children(parent) if self._continues(c, prompt_ids, position)]

    def _continues(self, node_id: int, prompt_ids: IntArray, position: int) -> bool:
        ids = self.nodes[node_id].token_ids
        return _same(ids, prompt_ids[position : position + len(ids)])


def _check_node(node: Node) -> None:
    if (sampled := np.count_nonzero(node.sampled)) != len(node.logprobs):
        raise GraphError(f"node {node.node_id} has {sampled} sampled tokens, {len(node.logprobs)} logprobs")


def _same(a: IntArray, b: IntArray) -> bool:
    """np.array_equal for what is an array already."""
    return len(a) == len(b) and bool((a == b).all())


def _check_call(
    prompt: int, segments: Sequence[Segment], sampled: int, logprobs: int, versions: Sequence[tuple[int, int]]
) -> None:
    if sampled != logprobs:
        raise GraphError(f"{sampled} sampled tokens came with {logprobs} log-probabilities")
    ends = [segment.end for segment in segments]
    if ends and max(ends) > prompt:
        raise GraphError(f"a message ends at {max(ends)}, past the prompt's {prompt} tokens")
    if ends != sorted(ends) or (ends and ends[0] < 0):
        raise GraphError(f"messages end at {ends}: give them in the order of the prompt")
    starts = [start for start, _ in versions]
    if (sampled and starts[:1] != [0]) or starts != sorted(set(starts)):
        raise GraphError(f"version spans start at {starts}: the first starts at 0, each later one further on")
