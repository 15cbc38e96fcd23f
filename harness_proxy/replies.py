"""What a reply is called, and replies that no engine sampled."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from palestra.harness_proxy.dialects.base import Reply
from palestra.harness_proxy.sessions import Session
from palestra.trajectories.model import Message, ToolCall


def reply_id(seq: int, digest: str) -> str:
    """Names the reply of call `seq` to the body with this digest; unique in a session."""
    return f"{seq}-{digest[:16]}"


def name_tool_calls(message: Message, rollout_id: str, seq: int) -> Message:
    """Give each tool call an id that says which call it came from: call_<seq>_<index>_<unique>."""
    if not message.tool_calls:
        return message
    named = (
        ToolCall(f"call_{seq}_{i}_{_unique(rollout_id, seq, i)}", c.name, c.arguments)
        for i, c in enumerate(message.tool_calls)
    )
    return replace(message, tool_calls=tuple(named))


def _unique(rollout_id: str, seq: int, index: int) -> str:
    return hashlib.blake2b(f"{rollout_id}/{seq}/{index}".encode(), digest_size=4).hexdigest()


def stopped(session: Session, why: str, text: str, prompt_tokens: int) -> Reply:
    """An answer that no engine sampled and that is not recorded: the harness is to end."""
    session.stop(why)
    return Reply(f"stop-{why}", Message("assistant", text), "stop", prompt_tokens, 0, None, why)
