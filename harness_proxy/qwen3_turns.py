"""The usual turns of the Qwen3 chat format without `renderers`: the same tokens and the same text, sooner.

What is not usual (a reply cut off in its thoughts, tool calls to parse, images, a prompt that ends in another way)
is left to `renderers`, which stays the reference; tests/harness_proxy/test_qwen3_turns.py holds one against the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import orjson

from palestra.harness_proxy.tokenizer import LocalTokenizer
from palestra.trajectories.model import Message

Added = tuple[list[int], list[int]]
"""Tokens that come next, and where in them each message ends."""
_SYSTEMS = 64
"""System messages with their tools whose tokens are kept: all rollouts of a set of tasks begin alike."""


class Qwen3Turns:
    """Bound to one tokenizer and to the settings of one renderer."""

    def __init__(self, renderer: Any, tokenizer: LocalTokenizer) -> None:
        self._renderer, self._tokenizer = renderer, tokenizer
        self._system = lru_cache(maxsize=_SYSTEMS)(self._rendered_system)
        ids = tokenizer.convert_tokens_to_ids
        self._start, self._end = ids("<|im_start|>"), ids("<|im_end|>")
        self._think, self._end_of_thought = ids("<think>"), ids("</think>")
        self._result, self._end_of_result = ids("<tool_response>"), ids("</tool_response>")
        self._stops = frozenset(renderer.get_stop_token_ids())
        self._marks = frozenset((self._think, self._end_of_thought, ids("<tool_call>")))
        self._users_may_speak = renderer.effective_thinking_retention == "all"
        self._never = renderer.effective_thinking_retention == "template"
        self._newline = tokenizer.encode("\n")
        thoughts = "" if renderer.config.enable_thinking else "<think>\n\n</think>\n\n"
        self._asks = [self._start, *tokenizer.encode("assistant\n"), *tokenizer.encode(thoughts)]

    def asks_anew(self, prompt_ids: Sequence[int]) -> bool:
        """Whether a prompt ends as those do that this format writes: no thought is open then."""
        return list(prompt_ids[-len(self._asks) :]) == self._asks

    def added(
        self, prompt_ids: Sequence[int], reply_ids: Sequence[int], messages: Sequence[Message]
    ) -> Added | None:
        """What comes after a reply: the new messages and the start of the next turn. None: ask `renderers`."""
        if not (messages and self.asks_anew(prompt_ids) and self._is_closed(reply_ids)):
            return None
        if self._never or any(m.media or not self._may_follow(m) for m in messages):
            return None
        return self._then(self._newline, messages)

    def opening(self, messages: Sequence[Message], tools: bytes) -> Added | None:
        """A conversation that begins with a system message and has no reply yet, up to the start of the first one.
        `tools` as JSON. None: ask `renderers`."""
        if not messages or messages[0].role != "system" or any(m.media for m in messages):
            return None
        if any(m.role not in ("system", "user", "tool") for m in messages):
            return None
        system = self._system(messages[0].content, tools)
        ids, ends = self._then(system, messages[1:])
        return ids, [len(system), *ends]

    def _rendered_system(self, content: str, tools: bytes) -> tuple[int, ...]:
        wire = [{"role": "system", "content": content}]
        return tuple(self._renderer.render(wire, tools=orjson.loads(tools) or None).token_ids)

    def _then(self, begun: Sequence[int], messages: Sequence[Message]) -> Added:
        """`begun`, then `messages`, then the start of a reply."""
        ids, ends = list(begun), []
        for position, message in enumerate(messages):
            if message.role == "tool":
                self._add_result(ids, messages, position)
            else:
                text = self._tokenizer.encode(f"{message.role}\n{message.content}")
                ids += [self._start, *text, self._end, *self._newline]
            ends.append(len(ids))
        return ids + self._asks, ends

    def plain_text(self, reply_ids: Sequence[int], prompt_ids: Sequence[int]) -> str | None:
        """What a reply says that has neither thoughts nor tool calls. None: ask `renderers`."""
        if not self.asks_anew(prompt_ids) or not self._marks.isdisjoint(reply_ids):
            return None
        if not self._stops.isdisjoint(reply_ids):
            reply_ids = reply_ids[: next(i for i, token in enumerate(reply_ids) if token in self._stops)]
        return self._tokenizer.decode(reply_ids).strip()

    def _is_closed(self, reply_ids: Sequence[int]) -> bool:
        """Whether a reply ends with its only stop token, its thoughts closed."""
        if not reply_ids or reply_ids[-1] not in self._stops or not self._stops.isdisjoint(reply_ids[:-1]):
            return False
        if self._think not in reply_ids:
            return True
        return self._end_of_thought in reply_ids[reply_ids.index(self._think) :]

    def _may_follow(self, message: Message) -> bool:
        """Thoughts of earlier turns may be dropped when the user speaks: then all is rendered again."""
        return message.role in ("tool", "system") or (message.role == "user" and self._users_may_speak)

    def _add_result(self, ids: list[int], messages: Sequence[Message], position: int) -> None:
        """Results that follow each other share one turn of the user."""
        if not position or messages[position - 1].role != "tool":
            ids += [self._start, *self._tokenizer.encode("user")]
        text = self._tokenizer.encode(f"\n{messages[position].content}\n")
        ids += [*self._newline, self._result, *text, self._end_of_result]
        if position + 1 == len(messages) or messages[position + 1].role != "tool":
            ids += [self._end, *self._newline]
