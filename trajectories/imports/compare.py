"""A recording beside the trace that the harness wrote of the same session.

Steps of the agent are aligned by what they say and call, however it is spelled; steps that stand at the same
place and differ are compared field by field.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

import orjson

from palestra.trajectories.imports.atif import Trace, TraceStep, trace_of
from palestra.trajectories.model import Trajectory
from palestra.trajectories.normal import normal_arguments

_SHOWN_CHARS = 120


@dataclass(frozen=True, slots=True)
class Difference:
    """One place where recording and trace do not say the same."""

    kind: str
    """missing (recorded, not in the trace), extra (the reverse), message, tool_calls, observation,
    prompt_token_ids, completion_token_ids."""
    step_id: int
    """Of the trace; for kind missing, of the recording as ATIF."""
    recorded: str
    traced: str


def compare_traces(trajectory: Trajectory, trace: Trace) -> list[Difference]:
    """Differences of the main conversation, in its order; none where the two agree.

    Prompts are compared by tokens only where the trace has them, observations by their trimmed text.
    """
    recorded = [s for s in trace_of(trajectory).steps if s.source == "agent" and s.metrics is not None]
    traced = [s for s in trace.steps if s.source == "agent"]
    found: list[Difference] = []
    for ours, theirs in _aligned(recorded, traced):
        for a, b in zip(ours, theirs, strict=False):
            found += _differences(a, b)
        found += [Difference("missing", s.step_id, _brief(s), "") for s in ours[len(theirs) :]]
        found += [Difference("extra", s.step_id, "", _brief(s)) for s in theirs[len(ours) :]]
    return found


_Stretch = tuple[list[TraceStep], list[TraceStep]]


def _aligned(recorded: list[TraceStep], traced: list[TraceStep]) -> Iterator[_Stretch]:
    """Stretches of the two that belong together; of as many steps in both, step by step."""
    if len(recorded) == len(traced):
        yield recorded, traced
        return
    ids = {c.tool_call_id for s in recorded for c in s.tool_calls or ()}
    ours, theirs = [[_key(s, ids) for s in steps] for steps in (recorded, traced)]
    for _, i, i_end, j, j_end in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        yield recorded[i:i_end], traced[j:j_end]


def _key(step: TraceStep, known_ids: set[str]) -> Hashable:
    """The ids of a step's tool calls where they are the recording's, else what it says and calls."""
    ids = tuple(c.tool_call_id for c in step.tool_calls or ())
    return ids if ids and known_ids.issuperset(ids) else (step.text.strip(), _calls(step))


def _calls(step: TraceStep) -> Hashable:
    calls = step.tool_calls or ()
    return tuple((c.function_name, normal_arguments(orjson.dumps(c.arguments).decode())) for c in calls)


def _differences(recorded: TraceStep, traced: TraceStep) -> Iterator[Difference]:
    number = traced.step_id
    if recorded.text.strip() != traced.text.strip():
        yield Difference("message", number, _cut(recorded.text), _cut(traced.text))
    if _calls(recorded) != _calls(traced):
        yield Difference("tool_calls", number, _brief_calls(recorded), _brief_calls(traced))
    results = [[r.text.strip() for r in s.results] for s in (recorded, traced)]
    if results[0] != results[1]:
        yield Difference("observation", number, _cut(str(results[0])), _cut(str(results[1])))
    for name in ("prompt_token_ids", "completion_token_ids"):
        ours, theirs = getattr(recorded.metrics, name), getattr(traced.metrics, name, None)
        if theirs is not None and ours != theirs:
            yield Difference(name, number, *_first_tokens(ours or [], theirs))


def _first_tokens(ours: list[int], theirs: list[int]) -> tuple[str, str]:
    """Where two lists of ids begin to differ, in words."""
    pairs = enumerate(zip(ours, theirs, strict=False))
    at = next((i for i, (a, b) in pairs if a != b), min(len(ours), len(theirs)))
    ids, others = (f"{len(x)} ids, from {at}: {x[at : at + 8]}" for x in (ours, theirs))
    return ids, others


def _brief(step: TraceStep) -> str:
    return _cut(" ".join(filter(None, [step.text.strip(), _brief_calls(step)])))


def _brief_calls(step: TraceStep) -> str:
    calls = (f"{c.function_name}({orjson.dumps(c.arguments).decode()})" for c in step.tool_calls or ())
    return _cut(", ".join(calls))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[: _SHOWN_CHARS - 3]}..."
