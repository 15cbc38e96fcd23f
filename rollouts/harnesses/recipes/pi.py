"""pi, a small coding agent that speaks all four APIs."""

from __future__ import annotations

from typing import ClassVar

import orjson

from palestra.rollouts.harnesses.recipes.install import Install, Npm
from palestra.rollouts.harnesses.recipes.recipe import Address, DialectName, HarnessRecipe, Launch, ToolUse

_APIS: dict[DialectName, tuple[str, str]] = {
    "chat": ("openai-completions", "/v1"),
    "responses": ("openai-responses", "/v1"),
    "anthropic": ("anthropic-messages", ""),
    "gemini": ("google-generative-ai", "/v1beta"),
}

_SETTINGS = '{"retry": {"enabled": true, "maxRetries": 6, "baseDelayMs": 1000}}'
"""A minute of patience in place of fourteen seconds."""


class Pi(HarnessRecipe):
    """Exit 0, with nothing said, also after a context that was too long."""

    name: ClassVar[str] = "pi"
    dialects: ClassVar[tuple[DialectName, ...]] = ("chat", "responses", "anthropic", "gemini")
    install: ClassVar[Install] = Npm("@mariozechner/pi-coding-agent", "0.73.1", "pi")
    shell: ClassVar[str] = "bash"
    resumes: ClassVar[bool] = True

    def launch(self, program: str, prompt: str, model: Address) -> Launch:
        """A provider of its own in models.json."""
        argv = (program, "--provider", "palestra", "--model", model.name, "-p", prompt)
        files = {".pi/agent/models.json": _models(model), ".pi/agent/settings.json": _SETTINGS}
        return Launch(argv, {"PI_OFFLINE": "1"}, files)

    def resume(self, program: str, prompt: str, model: Address) -> Launch:
        """The latest conversation in this directory."""
        fresh = self.launch(program, prompt, model)
        return Launch((*fresh.argv, "-c"), fresh.env, fresh.files)

    def write_use(self, path: str, text: str) -> ToolUse:
        """Its tool for new files."""
        return "write", {"path": path, "content": text + "\n"}


def _models(model: Address) -> str:
    api, version = _APIS[model.dialect]
    described = {
        "id": model.name,
        "name": model.name,
        "reasoning": True,
        "input": ["text"],
        "contextWindow": model.context_tokens,
        "maxTokens": model.max_reply_tokens,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }
    provider = {"baseUrl": model.root_url + version, "api": api, "apiKey": model.key, "models": [described]}
    return orjson.dumps({"providers": {"palestra": provider}}).decode()
