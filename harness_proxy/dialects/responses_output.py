"""A reply as output items of the Responses API, and the stream events that build each item."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from palestra.harness_proxy.dialects import shared
from palestra.harness_proxy.dialects.base import Reply, Request
from palestra.harness_proxy.dialects.responses_tools import Declaration, declarations
from palestra.trajectories.model import ToolCall

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Item:
    """An output item when it is done, and as it is when it begins."""

    whole: dict[str, Any]
    begun: dict[str, Any]


def output_items(request: Request, reply: Reply) -> list[Item]:
    """Reasoning, message and calls of a reply, in this order."""
    message, items = reply.message, []
    if message.reasoning is not None:
        items.append(_reasoning(reply, message.reasoning))
    if message.content or not message.tool_calls:
        items.append(_message(request, reply))
    declared = _declared(request) if message.tool_calls else {}
    for index, call in enumerate(message.tool_calls):
        items.append(_call(f"{reply.id}_{index}", call, declared.get(call.name)))
    return items


def item_events(item: Item, index: int) -> Iterator[Event]:
    """From output_item.added to output_item.done, without sequence numbers."""
    yield {"type": "response.output_item.added", "output_index": index, "item": item.begun}
    place = {"item_id": item.whole["id"], "output_index": index}
    for event in _EVENTS[item.whole["type"]](item.whole):
        yield place | event
    yield {"type": "response.output_item.done", "output_index": index, "item": item.whole}


def _declared(request: Request) -> dict[str, Declaration]:
    return {d.definition["function"]["name"]: d for d in declarations(request.body)[0]}


def _reasoning(reply: Reply, text: str) -> Item:
    whole = {
        "id": f"rs_{reply.id}",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": text}],
        "encrypted_content": shared.mark(reply.id),
    }
    return Item(whole, whole | {"summary": []})


def _message(request: Request, reply: Reply) -> Item:
    part: dict[str, Any] = {"type": "output_text", "text": reply.message.content, "annotations": []}
    part["logprobs"] = [_logprob(text, logprob) for text, logprob in reply.logprobs]
    status = "incomplete" if reply.finish_reason == "length" else "completed"
    whole: dict[str, Any] = {"id": f"msg_{reply.id}", "type": "message", "role": "assistant"}
    whole |= {"status": status, "content": [part]}
    return Item(whole, whole | {"status": "in_progress", "content": []})


def _logprob(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}


def _call(name: str, call: ToolCall, declared: Declaration | None) -> Item:
    if declared is not None and declared.custom:
        whole = {"id": f"ctc_{name}", "type": "custom_tool_call", "call_id": call.id}
        whole |= {"name": declared.name, "input": _free_text(call.arguments)}
        begun = whole | {"input": ""}
    else:
        whole = {"id": f"fc_{name}", "type": "function_call", "call_id": call.id, "status": "completed"}
        whole |= {"name": declared.name if declared else call.name, "arguments": call.arguments}
        begun = whole | {"arguments": "", "status": "in_progress"}
    if declared is not None and declared.namespace is not None:
        namespace = {"namespace": declared.namespace}
        whole, begun = whole | namespace, begun | namespace
    return Item(whole, begun)


def _free_text(arguments: str) -> str:
    """The one argument of a custom tool; arguments of another shape as they are."""
    try:
        found = orjson.loads(arguments)
    except orjson.JSONDecodeError:  # JSON that only Python reads
        return arguments
    text = found.get("input")
    return text if len(found) == 1 and isinstance(text, str) else arguments


def _reasoning_events(whole: dict[str, Any]) -> Iterator[Event]:
    part, kind = whole["summary"][0], "response.reasoning_summary"
    at = {"summary_index": 0}
    yield {"type": f"{kind}_part.added", "part": part | {"text": ""}, **at}
    yield {"type": f"{kind}_text.delta", "delta": part["text"], **at}
    yield {"type": f"{kind}_text.done", "text": part["text"], **at}
    yield {"type": f"{kind}_part.done", "part": part, **at}


def _message_events(whole: dict[str, Any]) -> Iterator[Event]:
    part = whole["content"][0]
    at = {"content_index": 0}
    yield {"type": "response.content_part.added", "part": part | {"text": "", "logprobs": []}, **at}
    if part["text"]:
        delta = {"delta": part["text"], "logprobs": part["logprobs"]}
        yield {"type": "response.output_text.delta", **delta, **at}
    done = {"text": part["text"], "logprobs": part["logprobs"]}
    yield {"type": "response.output_text.done", **done, **at}
    yield {"type": "response.content_part.done", "part": part, **at}


def _function_events(whole: dict[str, Any]) -> Iterator[Event]:
    kind = "response.function_call_arguments"
    yield {"type": f"{kind}.delta", "delta": whole["arguments"]}
    yield {"type": f"{kind}.done", "arguments": whole["arguments"]}


def _custom_events(whole: dict[str, Any]) -> Iterator[Event]:
    kind = "response.custom_tool_call_input"
    yield {"type": f"{kind}.delta", "delta": whole["input"]}
    yield {"type": f"{kind}.done", "input": whole["input"]}


_EVENTS = {
    "reasoning": _reasoning_events,
    "message": _message_events,
    "function_call": _function_events,
    "custom_tool_call": _custom_events,
}
