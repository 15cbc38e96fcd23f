"""Messages to token ids and back, for one model family.

The chat formats are those of the `renderers` package (PrimeIntellect, Apache-2.0): hand-written per family,
no Jinja. Two ways lead to a prompt: `render` writes a whole history, `bridge` appends new messages to tokens
that exist already and leaves those exactly as they were sampled. Both say where each message ends.

Literal special tokens inside a message's text become special tokens, as they do in the reference chat
templates.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import orjson

from palestra.harness_proxy.errors import RenderingError
from palestra.harness_proxy.qwen3_turns import Qwen3Turns
from palestra.harness_proxy.tokenizer import LocalTokenizer
from palestra.trajectories.chat import chat_message
from palestra.trajectories.graph import Segment
from palestra.trajectories.model import IntArray, Message, ParseStatus, ToolCall

FAMILY_OF_MODEL_TYPE = {"qwen3": "qwen3", "qwen3_moe": "qwen3", "gpt_oss": "gpt-oss"}
"""`model_type` of config.json to renderer, only where one architecture means one chat format."""

_LAST_TURN = frozenset({"qwen3"})
"""Families whose parser and bridge look at a prompt no further back than its last end-of-turn token."""
_KEPT_PROMPTS, _KEPT_TOKENS = 128, 32_768

Tools = Sequence[Mapping[str, Any]]

_ARGUMENTS_KEY = re.compile(r'"arguments"\s*:\s*')
_JSON = json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids to continue, and the messages that end them with the position at which each ends."""

    ids: list[int]
    segments: tuple[Segment, ...]


class Rendering:
    """The chat format of one model family, bound to one tokenizer."""

    def __init__(self, renderer: Any, tokenizer: LocalTokenizer, *, last_turn: bool = False) -> None:
        """`last_turn`: of a prompt, its last turn alone decides how it goes on."""
        self._renderer = renderer
        self._tokenizer = tokenizer
        self._last_turn = last_turn
        marked = tokenizer.convert_tokens_to_ids("<think>") is not None
        self._turns = Qwen3Turns(renderer, tokenizer) if last_turn and marked else None
        self._rendered: OrderedDict[Hashable, tuple[IntArray, tuple[Segment, ...]]] = OrderedDict()
        self.stop_token_ids: tuple[int, ...] = tuple(renderer.get_stop_token_ids())
        self._end_of_thought: int | None = tokenizer.convert_tokens_to_ids("</think>")

    @classmethod
    def load(
        cls,
        model_dir: str | Path,
        *,
        family: str | None = None,
        enable_thinking: bool = False,
        keep_thinking: bool = False,
    ) -> Rendering:
        """The format of the model in `model_dir` (tokenizer.json, config.json).

        Templates of thinking models leave the thoughts of earlier turns out once the user speaks again, which
        begins a new branch; with `keep_thinking` such a turn is bridged too, thoughts included.
        `family` names a renderer, for example "qwen3"; without it `model_type` of config.json decides where
        that is unambiguous. Raises RenderingError.
        """
        from renderers import create_renderer

        directory = Path(model_dir)
        config = _read_config(directory) if family is None else {}
        name = family or _family(config, directory)
        tokenizer = LocalTokenizer(directory / "tokenizer.json")
        try:
            config = _renderer_config(name, enable_thinking, keep_thinking)
            return cls(create_renderer(tokenizer, config), tokenizer, last_turn=name in _LAST_TURN)
        except (AssertionError, RuntimeError) as error:  # no special token; no vocabulary of gpt-oss
            raise RenderingError(
                f"the tokenizer in {directory} does not fit family {name!r}: {error}"
            ) from error

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` alone, outside any message."""
        return self._tokenizer.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens included; bytes that are not UTF-8 become U+FFFD."""
        return self._tokenizer.decode(ids)

    def render(self, messages: Sequence[Message], tools: Tools = ()) -> Prompt:
        """The whole history, ending where the assistant's next turn begins.

        The latest prompts are kept, since all attempts of a group begin with the same one. Raises RenderingError
        for a history that the family's format does not allow.
        """
        key = tuple(messages), _json(tools)
        kept = self._rendered.get(key)
        if kept is not None:
            self._rendered.move_to_end(key)
            return Prompt(kept[0].tolist(), kept[1])
        prompt = self._opening(messages, key[1]) or self._render(messages, tools)
        if len(prompt.ids) <= _KEPT_TOKENS:
            self._rendered[key] = np.array(prompt.ids, np.int32), prompt.segments
        if len(self._rendered) > _KEPT_PROMPTS:
            self._rendered.popitem(last=False)
        return prompt

    def _opening(self, messages: Sequence[Message], tools: bytes) -> Prompt | None:
        opened = self._turns.opening(messages, tools) if self._turns is not None else None
        if opened is None:
            return None
        ids, ends = opened
        return Prompt(ids, tuple(map(Segment, messages, ends)))

    def _render(self, messages: Sequence[Message], tools: Tools) -> Prompt:
        wire = [chat_message(m) for m in messages]
        try:
            rendered = self._renderer.render(wire, tools=list(tools) or None, add_generation_prompt=True)
        except ValueError as error:
            raise RenderingError(f"this history cannot be rendered: {error}") from error
        ends = _message_ends(rendered, messages)
        return Prompt(rendered.token_ids, _segments(messages, ends))

    def bridge(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        messages: Sequence[Message],
        tools: Tools = (),
    ) -> Prompt | None:
        """`prompt_ids + completion_ids`, then `messages`, then the start of the assistant's next turn.

        None where the format cannot continue those tokens as they are; then only `render` is right. A reply
        that was cut off is closed by the format's own end-of-turn token, which counts to the first new
        message.
        """
        added = self._turns.added(prompt_ids, completion_ids, messages) if self._turns is not None else None
        if added is None:
            return self._bridged(prompt_ids, completion_ids, messages, tools)
        start = len(prompt_ids) + len(completion_ids)
        segments = tuple(Segment(m, start + end) for m, end in zip(messages, added[1], strict=True))
        return Prompt([*prompt_ids, *completion_ids, *added[0]], segments)

    def _bridged(
        self,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        messages: Sequence[Message],
        tools: Tools,
    ) -> Prompt | None:
        begin = self._turn_start(prompt_ids)
        recent = [*prompt_ids[begin:], *completion_ids]
        bridged = self._renderer.bridge_to_next_turn(
            list(prompt_ids[begin:]),
            list(completion_ids),
            [chat_message(m) for m in messages],
            tools=list(tools) or None,
        )
        if bridged is None or bridged.token_ids[: len(recent)] != recent:
            return None
        ids = [*prompt_ids[:begin], *bridged.token_ids]
        ends = _last_positions(bridged.message_indices[len(recent) :], len(messages))
        start = begin + len(recent)
        return Prompt(ids, _segments(messages, [start + end for end in ends]))

    def _turn_start(self, prompt_ids: Sequence[int]) -> int:
        """How much of a prompt the format does not look at."""
        if not self._last_turn:
            return 0
        backwards = range(len(prompt_ids) - 1, 0, -1)
        return next((i for i in backwards if prompt_ids[i] in self.stop_token_ids), 0)

    def parse(
        self, sampled_ids: Sequence[int], prompt_ids: Sequence[int], tools: Tools = ()
    ) -> tuple[Message, ParseStatus]:
        """What the sampled tokens say. A tool call that does not parse stays in the content, word for word.

        The tool calls carry no ids; the proxy names them.
        """
        text = self._turns.plain_text(sampled_ids, prompt_ids) if self._turns is not None else None
        if text is not None:
            return Message("assistant", text), "text"
        ids = list(sampled_ids)
        try:
            parsed = self._renderer.parse_response(
                ids, tools=list(tools) or None, prompt_ids=self._context(prompt_ids)
            )
        except (ValueError, RecursionError):  # JSON nested too deep, or numbers too long, for Python's parser
            return Message("assistant", self._text(ids)), "malformed"
        calls = [(c, _tool_call(c)) for c in parsed.tool_calls]
        good = tuple(call for _, call in calls if call is not None)
        broken = [self._raw(c, ids) for c, call in calls if call is None]
        content = "\n".join(filter(None, [parsed.content, *broken]))
        status: ParseStatus = "malformed" if broken else "ok" if good else "text"
        return Message("assistant", content, parsed.reasoning_content or None, good), status

    def _context(self, prompt_ids: Sequence[int]) -> list[int] | None:
        """What of a prompt tells how its reply reads; None where no thought is open in it."""
        if self._turns is not None and self._turns.asks_anew(prompt_ids):
            return None
        return list(prompt_ids[self._turn_start(prompt_ids) :])

    def reasoning_tokens(self, message: Message, sampled_ids: Sequence[int]) -> int:
        """How many of `sampled_ids` are the reasoning of `message`: to the end of </think>, or all where that was
        not reached. In a format without such a token, as many as its text has alone."""
        if not message.reasoning:
            return 0
        if self._end_of_thought is None:
            return min(len(self.encode(message.reasoning)), len(sampled_ids))
        try:
            return sampled_ids.index(self._end_of_thought) + 1
        except ValueError:
            return len(sampled_ids)

    def _text(self, ids: Sequence[int]) -> str:
        return self.decode([i for i in ids if i not in self.stop_token_ids])

    def _raw(self, call: Any, ids: list[int]) -> str:
        return self.decode(ids[slice(*call.token_span)]) if call.token_span else str(call.raw)


def _json(tools: Tools) -> bytes:
    try:
        return orjson.dumps(list(tools))
    except TypeError as error:
        raise RenderingError(f"tools cannot be read: {error}") from error


def _tool_call(parsed: Any) -> ToolCall | None:
    """The call with the arguments as they were sampled where the format is JSON; None for a broken one."""
    if parsed.status != "ok" or not isinstance(parsed.name, str) or not isinstance(parsed.arguments, dict):
        return None
    try:
        arguments = _sampled_arguments(parsed.raw, parsed.arguments)
        (parsed.name + arguments).encode()
        return ToolCall("", parsed.name, arguments)
    except (UnicodeEncodeError, RecursionError):
        return None


def _sampled_arguments(raw: str, arguments: dict[str, Any]) -> str:
    for key in _ARGUMENTS_KEY.finditer(raw):
        try:
            value, end = _JSON.raw_decode(raw, key.end())
        except json.JSONDecodeError:
            continue
        if value == arguments:
            return raw[key.end() : end]
    return json.dumps(arguments, ensure_ascii=False)


def _message_ends(rendered: Any, messages: Sequence[Message]) -> list[int]:
    """Ends of all messages. An assistant's ends with its last sampled token, so that full renders and bridges
    cut a conversation at the same places."""
    owners = np.array(rendered.message_indices)
    if rendered.sampled_mask:
        assistant = np.array([m.role == "assistant" for m in messages])
        owners[assistant[owners] & (owners >= 0) & ~np.array(rendered.sampled_mask)] = -1
    return _last_positions(owners.tolist(), len(messages))


def _last_positions(owners: Iterable[int], count: int) -> list[int]:
    """One past the last token of each message, 0 for a message without tokens."""
    ends = [0] * count
    for position, owner in enumerate(owners):
        if owner >= 0:
            ends[owner] = position + 1
    return ends


def _segments(messages: Sequence[Message], ends: Sequence[int]) -> tuple[Segment, ...]:
    return tuple(Segment(m, end) for m, end in sorted(zip(messages, ends, strict=True), key=lambda s: s[1]))


def _read_config(directory: Path) -> dict[str, Any]:
    path = directory / "config.json"
    try:
        config = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise RenderingError(
            f"cannot read {path}: {error}; or name the chat format with family=..."
        ) from error
    return config if isinstance(config, dict) else {}


def _family(config: Mapping[str, Any], directory: Path) -> str:
    model_type = config.get("model_type")
    if model_type in FAMILY_OF_MODEL_TYPE:
        return FAMILY_OF_MODEL_TYPE[model_type]
    raise RenderingError(
        f"model_type {model_type!r} in {directory / 'config.json'} does not decide the chat format "
        f"(known: {', '.join(FAMILY_OF_MODEL_TYPE)}); pass family=..., one of {', '.join(families())}"
    )


def families() -> list[str]:
    """Names of the chat formats that exist; those that need a Jinja template or guess by model name are left
    out."""
    from renderers import RendererConfig

    union = get_args(RendererConfig)[0]
    names = {config.model_fields["name"].default for config in get_args(union)}
    return sorted(names - {"auto", "default", "custom"})


def _renderer_config(name: str, enable_thinking: bool, keep_thinking: bool) -> Any:
    from pydantic import TypeAdapter
    from renderers import RendererConfig

    if name not in families():
        raise RenderingError(f"no chat format {name!r}; there are {', '.join(families())}")
    adapter: TypeAdapter[Any] = TypeAdapter(RendererConfig)
    chosen: dict[str, Any] = {"name": name, "thinking_retention": "all" if keep_thinking else None}
    config = adapter.validate_python(chosen)
    if "enable_thinking" in type(config).model_fields:
        return adapter.validate_python(chosen | {"enable_thinking": enable_thinking})
    if enable_thinking:
        raise RenderingError(f"family {name!r} has no enable_thinking switch: leave it out")
    return config
