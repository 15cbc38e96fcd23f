"""An agent of the simplest kind over each provider's SDK: ask, run what is called for, until only text comes.

    python sdk_loop.py anthropic MODEL PROMPT [HISTORY.json]

A program that imports nothing of palestra: it stands for what people write themselves. The SDKs read key and
URL from their usual environment variables. It has two tools, shell and edit, and prints the last text. With
HISTORY.json the conversation goes on where that file left it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

COMMAND_S = 120
_TEXT = {"type": "string"}
TOOLS: dict[str, tuple[str, list[str]]] = {
    "shell": ("Run a shell command and return what it prints.", ["command"]),
    "edit": (
        "Write text to a file, or replace old by new in it where old is not empty.",
        ["path", "old", "new"],
    ),
}


def schema(names: list[str]) -> dict[str, Any]:
    """The JSON schema of text arguments that are all required."""
    return {"type": "object", "properties": {n: _TEXT for n in names}, "required": names}


def use(name: str, arguments: Any) -> str:
    """Run a tool; whatever the model did wrong is an answer to it."""
    try:
        wanted = json.loads(arguments) if isinstance(arguments, str) else arguments
        values = [wanted[n] for n in TOOLS[name][1]]
        return shell(*values) if name == "shell" else edit(*values)
    except (KeyError, TypeError, ValueError, OSError, subprocess.TimeoutExpired) as error:
        return f"error: {type(error).__name__}: {error}"


def shell(command: str) -> str:
    """The output of `command`, both streams, and its exit code where it failed."""
    ran = subprocess.run(
        ["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        timeout=COMMAND_S, check=False,
    )  # fmt: skip
    output = ran.stdout.decode("utf-8", "replace")
    return output if ran.returncode == 0 else f"{output}\nexit code {ran.returncode}"


def edit(path: str, old: str, new: str) -> str:
    """Write or replace."""
    file = Path(path)
    text = file.read_text() if old else ""
    if old and text.count(old) != 1:
        return f"error: old occurs {text.count(old)} times in {path}, it must occur once"
    file.write_text(text.replace(old, new) if old else new)
    return "done"


def chat(model: str, prompt: str, history: list[Any]) -> str:
    """OpenAI Chat Completions, not streamed."""
    import openai

    client = openai.OpenAI()
    tools: Any = [
        {"type": "function", "function": {"name": n, "description": d, "parameters": schema(a)}}
        for n, (d, a) in TOOLS.items()
    ]
    history.append({"role": "user", "content": prompt})
    while True:
        reply: Any = client.chat.completions.create(model=model, messages=history, tools=tools)
        message = reply.choices[0].message
        history.append(message.model_dump(mode="json", exclude_none=True))
        for call in message.tool_calls or ():
            answer = use(call.function.name, call.function.arguments)
            history.append({"role": "tool", "tool_call_id": call.id, "content": answer})
        if not message.tool_calls:
            return str(message.content or "")


def responses(model: str, prompt: str, history: list[Any]) -> str:
    """OpenAI Responses, streamed."""
    import openai

    client = openai.OpenAI()
    tools: Any = [
        {"type": "function", "name": n, "description": d, "parameters": schema(a), "strict": False}
        for n, (d, a) in TOOLS.items()
    ]
    history.append({"role": "user", "content": prompt})
    while True:
        events: Any = client.responses.create(
            model=model, input=history, tools=tools, store=False, stream=True
        )
        ends = ("response.completed", "response.incomplete")
        reply: Any = next(event for event in events if event.type in ends).response
        history += [item.model_dump(mode="json", exclude_none=True) for item in reply.output]
        calls: list[Any] = [item for item in reply.output if item.type == "function_call"]
        for call in calls:
            answer = use(call.name, call.arguments)
            history.append({"type": "function_call_output", "call_id": call.call_id, "output": answer})
        if not calls:
            return str(reply.output_text)


def anthropic(model: str, prompt: str, history: list[Any]) -> str:
    """Anthropic Messages, streamed, with thinking."""
    import anthropic

    client = anthropic.Anthropic()
    tools: Any = [{"name": n, "description": d, "input_schema": schema(a)} for n, (d, a) in TOOLS.items()]
    history.append({"role": "user", "content": prompt})
    while True:
        with client.messages.stream(
            model=model, messages=history, tools=tools, max_tokens=4096,
            thinking={"type": "enabled", "budget_tokens": 1024},
        ) as stream:  # fmt: skip
            reply: Any = stream.get_final_message()
        history.append({"role": "assistant", "content": [b.to_dict(mode="json") for b in reply.content]})
        calls: list[Any] = [block for block in reply.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in reply.content if block.type == "text")
        results = [
            {"type": "tool_result", "tool_use_id": c.id, "content": use(c.name, c.input)} for c in calls
        ]
        history.append({"role": "user", "content": results})


def gemini(model: str, prompt: str, history: list[Any]) -> str:
    """Google Gemini, not streamed, with thoughts."""
    from google import genai
    from google.genai import types

    client = genai.Client()
    declared: Any = [
        {"name": n, "description": d, "parametersJsonSchema": schema(a)} for n, (d, a) in TOOLS.items()
    ]
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=declared)],
        thinking_config=types.ThinkingConfig(include_thoughts=True),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
    )
    history.append({"role": "user", "parts": [{"text": prompt}]})
    while True:
        reply = client.models.generate_content(model=model, contents=history, config=config)
        content = (reply.candidates or [types.Candidate()])[0].content or types.Content(role="model")
        history.append(content.model_dump(mode="json", exclude_none=True))
        calls = [part.function_call for part in content.parts or () if part.function_call is not None]
        if not calls:
            return reply.text or ""
        answers = [
            {"id": c.id, "name": c.name, "response": {"output": use(str(c.name), c.args)}} for c in calls
        ]
        history.append({"role": "user", "parts": [{"functionResponse": a} for a in answers]})


LOOPS: dict[str, Callable[[str, str, list[Any]], str]] = {
    "chat": chat,
    "responses": responses,
    "anthropic": anthropic,
    "gemini": gemini,
}


def main() -> None:
    """Play one session."""
    dialect, model, prompt, *kept = sys.argv[1:]
    file = Path(kept[0]).expanduser() if kept else None
    history = json.loads(file.read_text()) if file is not None and file.exists() else []
    print(LOOPS[dialect](model, prompt, history))
    if file is not None:
        file.write_text(json.dumps(history))


if __name__ == "__main__":
    main()
