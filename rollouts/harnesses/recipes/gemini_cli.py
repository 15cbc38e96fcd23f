"""Google's Gemini CLI. Drops the model's thoughts from the history that it sends."""

from __future__ import annotations

from typing import ClassVar

import orjson

from palestra.rollouts.harnesses.recipes.install import Install, Npm
from palestra.rollouts.harnesses.recipes.recipe import Address, DialectName, HarnessRecipe, Launch, ToolUse

_SETTINGS = {
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"enableAutoUpdate": False},
    "security": {"auth": {"selectedType": "gemini-api-key"}},
}


class GeminiCli(HarnessRecipe):
    """Exit 0 also after a reply that broke off. With a model named it asks no router."""

    name: ClassVar[str] = "gemini-cli"
    dialects: ClassVar[tuple[DialectName, ...]] = ("gemini",)
    install: ClassVar[Install] = Npm("@google/gemini-cli", "0.61.0", "gemini")
    shell: ClassVar[str] = "run_shell_command"
    resumes: ClassVar[bool] = True
    resumption_forks: ClassVar[bool] = True

    def launch(self, program: str, prompt: str, model: Address) -> Launch:
        """All tools are allowed: the place is the sandbox."""
        env = {
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
            "GEMINI_API_KEY": model.key,
            "GOOGLE_GEMINI_BASE_URL": model.root_url,
        }
        settings = {".gemini/settings.json": orjson.dumps(_SETTINGS).decode()}
        return Launch((program, "-y", "-m", model.name, "-p", prompt), env, settings)

    def resume(self, program: str, prompt: str, model: Address) -> Launch:
        """The latest conversation in this directory."""
        fresh = self.launch(program, prompt, model)
        return Launch((*fresh.argv, "-r", "latest"), fresh.env, fresh.files)

    def write_use(self, path: str, text: str) -> ToolUse:
        """Its tool for new files; `path` must be absolute."""
        return "write_file", {"file_path": path, "content": text + "\n"}
