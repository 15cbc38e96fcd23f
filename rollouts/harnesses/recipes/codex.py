"""OpenAI Codex CLI. Speaks Responses; an unknown model name keeps it off its JavaScript tool protocol."""

from __future__ import annotations

import re
from typing import ClassVar

from palestra.rollouts.harnesses.place import Ended
from palestra.rollouts.harnesses.recipes.install import Install, Npm
from palestra.rollouts.harnesses.recipes.recipe import Address, DialectName, HarnessRecipe, Launch, ToolUse

_CONFIG = """
model = "{model.name}"
model_provider = "palestra"
model_context_window = {model.context_tokens}
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.palestra]
name = "palestra"
base_url = "{model.root_url}/v1"
env_key = "PALESTRA_KEY"
wire_api = "responses"
stream_max_retries = 100
stream_idle_timeout_ms = 3600000
"""
"""A 429 with Retry-After counts as a lost stream: five of them would not outlast a change of weights."""
_CUT = re.compile(r"Incomplete response returned|max_output_tokens|ran out of room")
"""Said before exit code 1 where a reply was cut off or the context is full: an end, not a crash."""


class Codex(HarnessRecipe):
    """Exit 0: the turn is complete. Exit 1: the API failed for good, or a reply was cut off."""

    name: ClassVar[str] = "codex"
    dialects: ClassVar[tuple[DialectName, ...]] = ("responses",)
    install: ClassVar[Install] = Npm("@openai/codex", "0.169.0", "codex")
    shell: ClassVar[str] = "exec_command"
    resumes: ClassVar[bool] = True

    def launch(self, program: str, prompt: str, model: Address) -> Launch:
        """Its own sandbox is off: the place is the sandbox."""
        return self._launch(program, (prompt,), model)

    def resume(self, program: str, prompt: str, model: Address) -> Launch:
        """By its session files."""
        return self._launch(program, ("resume", "--last", prompt), model)

    def problem(self, ended: Ended) -> str | None:
        """See the class."""
        return None if _CUT.search(ended.stdout) else super().problem(ended)

    def answer(self, ended: Ended) -> str:
        """The text of the last agent_message event."""
        return _last_message(ended.stdout)

    def shell_use(self, command: str) -> ToolUse:
        """Its argument is called cmd."""
        return self.shell, {"cmd": command}

    def _launch(self, program: str, what: tuple[str, ...], model: Address) -> Launch:
        flags = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "--json")
        config = {".codex/config.toml": _CONFIG.format(model=model)}
        return Launch((program, "exec", *flags, *what), {"PALESTRA_KEY": model.key}, config)


def _last_message(stdout: str) -> str:
    import orjson

    for line in reversed(stdout.splitlines()):
        if '"agent_message"' in line:
            return str(orjson.loads(line)["item"]["text"])
    return ""
