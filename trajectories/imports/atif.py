"""Reading ATIF traces, versions 1.0 to 1.8, as harnesses write them of their own sessions.

Only what can be compared with a recording is read; unknown fields are passed over. Source: harbor 0.25,
harbor/models/trajectories.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from palestra.trajectories.errors import TraceError
from palestra.trajectories.exports.atif import to_atif
from palestra.trajectories.model import Trajectory

_VERSION = re.compile(r"ATIF-v1\.[0-8]")


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Part(_Record):
    type: str
    text: str | None = None


class TraceToolCall(_Record):
    """One tool call of a step."""

    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]


class TraceResult(_Record):
    """What came back; `source_call_id` names the tool call, where it is known."""

    source_call_id: str | None = None
    content: str | list[_Part] | None = None

    @property
    def text(self) -> str:
        """The text of the result."""
        return _text(self.content)


class _Observation(_Record):
    results: list[TraceResult] = []


class TraceMetrics(_Record):
    """What is known of the call to the model."""

    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None


class TraceStep(_Record):
    """One step of a trace."""

    step_id: int
    source: Literal["system", "user", "agent"]
    message: str | list[_Part] = ""
    reasoning_content: str | None = None
    tool_calls: list[TraceToolCall] | None = None
    observation: _Observation | None = None
    metrics: TraceMetrics | None = None
    is_copied_context: bool | None = None

    @property
    def text(self) -> str:
        """The text of the message."""
        return _text(self.message)

    @property
    def results(self) -> list[TraceResult]:
        """What came back."""
        return self.observation.results if self.observation is not None else []


class Trace(_Record):
    """One ATIF document."""

    schema_version: str
    steps: list[TraceStep]
    session_id: str | None = None
    subagent_trajectories: list[Trace] | None = None


def read_atif(source: Path | bytes | dict[str, Any]) -> Trace:
    """The trace in a file, in bytes or in a decoded document. Raises TraceError."""
    try:
        given = source.read_bytes() if isinstance(source, Path) else source
        document = orjson.loads(given) if isinstance(given, bytes) else given
        trace = Trace.model_validate(document)
    except (OSError, orjson.JSONDecodeError, ValidationError) as error:
        name = source if isinstance(source, Path) else "this"
        raise TraceError(f"{name} is no ATIF trace: {error}") from error
    if not _VERSION.fullmatch(trace.schema_version):
        raise TraceError(f"schema_version is {trace.schema_version!r}, ATIF-v1.0 to ATIF-v1.8 can be read")
    return trace


def trace_of(trajectory: Trajectory) -> Trace:
    """A recording as the trace that its export would be."""
    return read_atif(to_atif(trajectory))


def _text(content: str | list[_Part] | None) -> str:
    if isinstance(content, list):
        return "".join(part.text or "" for part in content)
    return content or ""
