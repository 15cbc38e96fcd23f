"""ATIF 1.8, the Agent Trajectory Interchange Format of Harbor: one JSON document per rollout.

The main conversation is the document; other branches (sub-agents, side calls, what came before a compaction)
are its `subagent_trajectories`. A step that two branches share is whole in the first and `is_copied_context`
in the others, so each sampled token is in one `completion_token_ids`. `metrics` has the ids of the whole
prompt and of the reply, and the log-probability of each sampled token. What ATIF has no field for is under
`extra.palestra`: whether the step is trained, its role, the steps of the world that it caused.

Source: harbor 0.25, harbor/models/trajectories, and the RFC "0001 trajectory format".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from palestra.trajectories.chat import content_parts
from palestra.trajectories.graph import TokenGraph
from palestra.trajectories.model import Call, Media, Message, Node, Trajectory
from palestra.trajectories.sample import branches

SCHEMA_VERSION = "ATIF-v1.8"

_IMAGES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_SOURCES = {"system": "system", "assistant": "agent"}
Json = dict[str, Any]


def atif_rows(trajectory: Trajectory) -> Iterator[Json]:
    """The document of one rollout; none for a rollout without a message."""
    if trajectory.nodes:
        yield to_atif(trajectory)


def to_atif(trajectory: Trajectory) -> Json:
    """The ATIF document of a rollout that has at least one message."""
    return _Documents(trajectory).root()


class _Documents:
    """Branches of one rollout; what was written once is copied context from then on."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        self._graph = TokenGraph(trajectory.nodes)
        self._calls = {call.node_id: call for call in trajectory.calls}
        self._trained = {n for branch in branches(trajectory) for n in branch.trained}
        self._written: set[int] = set()

    def root(self) -> Json:
        main, *others = self._leaves()
        rollout = self._trajectory.rollout
        document = self._document(main) | {"extra": {"palestra": _outcome(self._trajectory)}}
        document["session_id"] = rollout.rollout_id
        rest = [self._document(leaf) | self._part_of(leaf) for leaf in others]
        return document | ({"subagent_trajectories": rest} if rest else {})

    def _leaves(self) -> list[int]:
        """Ends of the branches, the one with the most of the agent's calls first."""
        leaves = list(self._graph.leaves())
        return sorted(leaves, key=lambda leaf: (-self._agent_calls(leaf), leaf))

    def _agent_calls(self, leaf: int) -> int:
        calls = (self._calls.get(node.node_id) for node in self._graph.path(leaf))
        return sum(call is not None and call.role == "agent" for call in calls)

    def _part_of(self, leaf: int) -> Json:
        call = self._calls.get(leaf)
        return {"extra": {"palestra": {"role": call.role if call is not None else None}}}

    def _document(self, leaf: int) -> Json:
        rollout = self._trajectory.rollout
        steps = self._steps(leaf)
        agent: Json = {"name": rollout.harness, "version": rollout.harness_version or "unknown"}
        tools = self._tools(leaf)
        return {
            "schema_version": SCHEMA_VERSION,
            "trajectory_id": f"{rollout.rollout_id}#{leaf}",
            "agent": agent | ({"tool_definitions": tools} if tools else {}),
            "steps": steps,
            "final_metrics": _totals(steps),
        }

    def _tools(self, leaf: int) -> list[Any]:
        calls = (self._calls.get(node.node_id) for node in reversed(self._graph.path(leaf)))
        offered = next((c.tools_sha256 for c in calls if c is not None and c.tools_sha256 is not None), None)
        return list(self._trajectory.tools.get(offered, ())) if offered is not None else []

    def _steps(self, leaf: int) -> list[Json]:
        steps: list[Json] = []
        path = self._graph.path(leaf)
        for position, node in enumerate(path):
            copied = node.node_id in self._written
            if node.message.role == "tool":
                _observe(steps, node.message, copied)
            else:
                steps.append(self._step(path[: position + 1], copied))
        self._written.update(node.node_id for node in path)
        return [{"step_id": number, **step} for number, step in enumerate(steps, 1)]

    def _step(self, path: list[Node], copied: bool) -> Json:
        node = path[-1]
        step = _spoken(node.message)
        if copied:
            return step | {"is_copied_context": True}
        call = self._calls.get(node.node_id)
        if call is None:
            return step
        known = {"metrics": _metrics(path, call), "llm_call_count": 1}
        return step | known | {"extra": {"palestra": self._about(call)}}

    def _about(self, call: Call) -> Json:
        names = ("seq", "role", "delivered", "policy_version", "finish_reason", "started_s", "duration_s")
        caused = [asdict(step) for step in self._trajectory.steps if step.call == call.seq]
        about = {name: getattr(call, name) for name in names}
        return about | {"trained": call.node_id in self._trained, "env_steps": caused}


def _spoken(message: Message) -> Json:
    """A step with what was said; arguments that are no JSON object stand under "raw"."""
    step: Json = {"source": _SOURCES.get(message.role, "user"), "message": _content(message)}
    if message.role == "assistant":
        if message.reasoning is not None:
            step["reasoning_content"] = message.reasoning
        calls = [
            {"tool_call_id": c.id, "function_name": c.name, "arguments": arguments_object(c.arguments)}
            for c in message.tool_calls
        ]
        step |= {"tool_calls": calls} if calls else {}
    return step


def _observe(steps: list[Json], message: Message, copied: bool) -> None:
    """Put a tool result where its call is, or in a step of its own where that is not the step before."""
    if not steps or steps[-1]["source"] != "agent":
        own: Json = {"source": "system", "message": ""}
        steps.append(own | ({"is_copied_context": True} if copied else {}))
    ids = [call["tool_call_id"] for call in steps[-1].get("tool_calls", ())]
    result: Json = {"content": _content(message)}
    if message.tool_call_id in ids:
        result["source_call_id"] = message.tool_call_id
    elif message.tool_call_id is not None:
        result["extra"] = {"tool_call_id": message.tool_call_id}
    steps[-1].setdefault("observation", {"results": []})["results"].append(result)


def _content(message: Message) -> str | list[Json]:
    return content_parts(message, _image) if message.media else message.content


def _image(media: Media) -> Json:
    path = f"blobs/{media.sha256[:2]}/{media.sha256}"
    if media.mime in _IMAGES:
        return {"type": "image", "source": {"media_type": media.mime, "path": path}}
    return {"type": "text", "text": f"[{media.mime} in {path}]"}


def arguments_object(arguments: str) -> Json:
    """Arguments of a tool call as an object; text that is no JSON object under "raw"."""
    try:
        value = json.loads(arguments, parse_constant=str)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"raw": arguments}


def _metrics(path: list[Node], call: Call) -> Json:
    node = path[-1]
    if not node.sampled.any():
        return {"prompt_tokens": call.prompt_tokens}
    ids = np.concatenate([n.token_ids for n in path])
    cut = len(ids) - len(node.logprobs)
    return {
        "prompt_tokens": cut,
        "completion_tokens": len(node.logprobs),
        "cached_tokens": reused_tokens(path, call),
        "prompt_token_ids": ids[:cut].tolist(),
        "completion_token_ids": ids[cut:].tolist(),
        "logprobs": node.logprobs.tolist(),
    }


def reused_tokens(path: list[Node], call: Call) -> int:
    """Prompt tokens of a bridged call that its path had already: up to the end of the reply before."""
    if call.prompt_mode != "bridge":
        return 0
    above = path[:-1]
    while above and not above[-1].sampled.any():
        above = above[:-1]
    return sum(len(n.token_ids) for n in above)


def _totals(steps: list[Json]) -> Json:
    metrics = [step["metrics"] for step in steps if "metrics" in step]
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    return {f"total_{name}": sum(m.get(name, 0) for m in metrics) for name in names} | {
        "total_steps": len(steps)
    }


def _outcome(trajectory: Trajectory) -> Json:
    """The rollout without what the document says elsewhere; a reward that was not measured is null."""
    return {**asdict(trajectory.rollout), "reward": trajectory.rollout.reward}
