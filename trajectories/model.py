"""The nouns of a rollout, as plain append-only records.

A `Trajectory` is everything known about one rollout: the `Rollout` itself, the `Call`s that its harness made
to the proxy, the `Node`s of the token graph those calls wrote, and the `EnvStep`s of the world. What can be
derived (returns, advantages, flat training arrays) is derived elsewhere and never stored here.

Token arrays are numpy: ids int32, masks bool, log-probabilities float32 in nats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
BoolArray = npt.NDArray[np.bool_]

CaptureLevel = Literal["tokens", "logprobs", "text"]
"""What the engine gave us: token ids with log-probabilities, log-probabilities of text, or text alone."""

Mode = Literal["train", "eval"]
Role = Literal["agent", "subagent", "auxiliary", "compaction", "discarded"]
FinishReason = Literal["stop", "length", "abort"]
ParseStatus = Literal["ok", "text", "malformed"]
"""How the reply read: tool calls that parsed, plain text, or at least one tool call that did not parse."""

Boundary = Literal["provider", "harness", "env", "sandbox", "grader", "proxy", "budget", "cancelled"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call of an assistant message; `arguments` is JSON text, exactly as it was sampled or sent."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Media:
    """An image or another attachment: a blob named by `sha256`, at `offset` characters into the content."""

    sha256: str
    mime: str
    offset: int


@dataclass(frozen=True, slots=True)
class Message:
    """One message, the same for every API dialect."""

    role: str
    """system, user, assistant or tool."""
    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """For role tool: the call that this message answers."""
    name: str | None = None
    media: tuple[Media, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One message in the token graph, holding only the tokens it adds to its parent's path.

    `concat(node.token_ids along a path)` is exactly what the engine saw and sampled.
    """

    node_id: int
    parent: int | None
    message: Message
    token_ids: IntArray  # (n,)
    sampled: BoolArray  # (n,) True where the engine sampled the token
    logprobs: FloatArray  # (sampled.sum(),) of the sampled tokens alone, in order
    versions: tuple[tuple[int, int], ...] = ()
    """(index of the first sampled token, policy version) per span; empty for a node that was not sampled."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. Without truncation (the default) log-probabilities cover the whole vocabulary."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""
    max_tokens: int = 1024
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Drift:
    """Where a history stopped matching what was recorded, so that the graph forked."""

    kind: str
    """system, tools, message, reasoning or tokens."""
    position: int
    """Index of the first message (or token, for kind tokens) that differs."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the proxy and the reply to it."""

    seq: int
    dialect: str
    request_sha256: str
    tools_sha256: str | None
    prompt_mode: Literal["bridge", "render", "chat"]
    requested: Mapping[str, Any]
    """The sampling parameters that the harness asked for."""
    effective: Sampling
    logprob_semantics: Literal["processed", "raw", "none"]
    policy_version: int
    finish_reason: FinishReason
    parse_status: ParseStatus
    node_id: int
    prompt_tokens: int
    started_s: float
    """Seconds since the session was opened."""
    duration_s: float
    role: Role = "agent"
    delivered: bool = True
    """The reply reached its caller. A reply that did not is never trained on."""
    retry_of: int | None = None
    drift: Drift | None = None


@dataclass(frozen=True, slots=True)
class EnvStep:
    """One step of the world, joined to the call that caused it."""

    index: int
    call: int | None
    """`Call.seq` of the reply that this action came from; None for an action no engine sampled."""
    tool_call_id: str | None
    action: str
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    anchor: str
    """Names the state *before* the action: equal anchors within one task are the same decision point."""
    state_digest: str
    """Of the state *after* the action."""
    valid_action: bool = True
    duration_s: float = 0.0
    matched: bool | None = None
    """Whether the action was the expert's, in a world that goes along an expert's path; None elsewhere."""


@dataclass(frozen=True, slots=True)
class Score:
    """A measurement of an outcome. An invalid score has no value: it is not a zero."""

    value: float | None
    valid: bool
    parts: Mapping[str, float] = field(default_factory=dict)
    grader: str = ""
    grader_version: str = ""
    evidence: str = ""

    def __post_init__(self) -> None:
        if self.valid != (self.value is not None):
            raise ValueError(f"a valid score has a value and an invalid one has none, got {self!r}")
        if self.value is not None and not np.isfinite(self.value):
            raise ValueError(f"a score must be finite, got {self.value!r}")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a rollout has no reward: one boundary, named once."""

    boundary: Boundary
    stage: str
    message: str
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt at one task. It ends either scored or failed, never both and never neither."""

    rollout_id: str
    run_id: str
    group_id: str
    task_id: str
    sample_index: int
    attempt: int
    mode: Mode
    harness: str
    harness_version: str
    capture_level: CaptureLevel
    seed: int
    score: Score | None = None
    failure: Failure | None = None
    truncated: bool = False
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds per stage: setup, agent, env, grade, total."""
    policy_versions: tuple[int, int] | None = None
    """Lowest and highest policy version that sampled a token."""
    findings: tuple[str, ...] = ()
    """What a person should know: earlier attempts that failed, drifts, retries."""
    task_hash: str = ""
    """Content hash of the task as it was played."""

    def __post_init__(self) -> None:
        if (self.score is None) == (self.failure is None):
            raise ValueError(f"rollout {self.rollout_id}: give exactly one of score and failure")

    @property
    def reward(self) -> float | None:
        """The score's value, or None where there is no valid score."""
        return self.score.value if self.score is not None else None


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One rollout with all it left behind; the unit that the store commits."""

    rollout: Rollout
    nodes: tuple[Node, ...] = ()
    calls: tuple[Call, ...] = ()
    steps: tuple[EnvStep, ...] = ()
    tools: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    """Tool definitions by their digest, as `Call.tools_sha256` names them."""
    blobs: Mapping[str, bytes] = field(default_factory=dict, compare=False, repr=False)
    """Attachments of a fresh recording by SHA-256, which `Store.append` keeps; read back with `Store.get_blob`."""
