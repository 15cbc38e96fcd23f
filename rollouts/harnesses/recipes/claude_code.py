"""Anthropic's Claude Code. Speaks Messages; without its telemetry switch it also asks for titles."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import orjson

from palestra.rollouts.harnesses.place import Ended
from palestra.rollouts.harnesses.recipes.install import Install, Npm
from palestra.rollouts.harnesses.recipes.recipe import Address, DialectName, HarnessRecipe, Launch, ToolUse

_SWITCHES = {
    "IS_SANDBOX": "1",  # root may skip permissions
    "DISABLE_TELEMETRY": "1",
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
}

_SPENT = re.compile(r"[Pp]rompt is too long|exceeded the \d+ output token maximum")


class ClaudeCode(HarnessRecipe):
    """Exit 0 with is_error in its JSON is an error all the same; a stream that broke off is not noticed by it."""

    name: ClassVar[str] = "claude-code"
    dialects: ClassVar[tuple[DialectName, ...]] = ("anthropic",)
    install: ClassVar[Install] = Npm("@anthropic-ai/claude-code", "2.1.330", "claude")
    shell: ClassVar[str] = "Bash"
    resumes: ClassVar[bool] = True

    def launch(self, program: str, prompt: str, model: Address) -> Launch:
        """All tools are allowed: the place is the sandbox."""
        return self._launch(program, ("-p", prompt), model)

    def resume(self, program: str, prompt: str, model: Address) -> Launch:
        """The latest conversation in this directory."""
        return self._launch(program, ("-c", "-p", prompt), model)

    def problem(self, ended: Ended) -> str | None:
        """See the class. A full context, or a reply cut off time and again, ends the session without breaking it."""
        result = _result(ended)
        if result.get("is_error"):
            said = str(result.get("result") or result.get("subtype"))[:500]
            return None if _SPENT.search(said) else said
        return super().problem(ended)

    def answer(self, ended: Ended) -> str:
        """The field `result` of its JSON."""
        return str(_result(ended).get("result", ""))

    def write_use(self, path: str, text: str) -> ToolUse:
        """Its tool for new files; `path` must be absolute."""
        return "Write", {"file_path": path, "content": text + "\n"}

    def _launch(self, program: str, what: tuple[str, ...], model: Address) -> Launch:
        argv = (program, *what, "--model", model.name, "--dangerously-skip-permissions")
        env = {"ANTHROPIC_BASE_URL": model.root_url, "ANTHROPIC_AUTH_TOKEN": model.key, **_SWITCHES}
        return Launch((*argv, "--output-format", "json"), env)


def _result(ended: Ended) -> dict[str, Any]:
    try:
        result = orjson.loads(ended.stdout)
    except orjson.JSONDecodeError:
        return {}
    return result if isinstance(result, dict) else {}
