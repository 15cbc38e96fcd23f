"""The plain SDK loops of `sdk_loop.py` as harnesses: what an agent without a framework sends."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from palestra.rollouts.harnesses.recipes.install import Beside, Install
from palestra.rollouts.harnesses.recipes.recipe import Address, DialectName, HarnessRecipe, Launch, ToolUse

_LOOP = Path(__file__).with_name("sdk_loop.py")
_HISTORY = "~/.palestra-history.json"


class SdkLoop(HarnessRecipe):
    """Exit 1 with a traceback where the API failed for good."""

    shell: ClassVar[str] = "shell"
    resumes: ClassVar[bool] = True

    def launch(self, program: str, prompt: str, model: Address) -> Launch:
        """In the environment that palestra runs in."""
        argv = (program, "-I", str(_LOOP), model.dialect, model.name, prompt, _HISTORY)
        return Launch(argv, self._env(model))

    def resume(self, program: str, prompt: str, model: Address) -> Launch:
        """The loop finds its history in the home directory."""
        return self.launch(program, prompt, model)

    def write_use(self, path: str, text: str) -> ToolUse:
        """Its second tool."""
        return "edit", {"path": path, "old": "", "new": text + "\n"}

    def _env(self, model: Address) -> dict[str, str]:
        raise NotImplementedError


class OpenaiSdk(SdkLoop):
    """Chat Completions, and Responses streamed."""

    name: ClassVar[str] = "openai-sdk"
    dialects: ClassVar[tuple[DialectName, ...]] = ("chat", "responses")
    install: ClassVar[Install] = Beside("openai")

    def _env(self, model: Address) -> dict[str, str]:
        return {"OPENAI_BASE_URL": f"{model.root_url}/v1", "OPENAI_API_KEY": model.key}


class AnthropicSdk(SdkLoop):
    """Messages, streamed."""

    name: ClassVar[str] = "anthropic-sdk"
    dialects: ClassVar[tuple[DialectName, ...]] = ("anthropic",)
    install: ClassVar[Install] = Beside("anthropic")

    def _env(self, model: Address) -> dict[str, str]:
        return {"ANTHROPIC_BASE_URL": model.root_url, "ANTHROPIC_API_KEY": model.key}


class GenaiSdk(SdkLoop):
    """generateContent, not streamed."""

    name: ClassVar[str] = "genai-sdk"
    dialects: ClassVar[tuple[DialectName, ...]] = ("gemini",)
    install: ClassVar[Install] = Beside("google-genai")

    def _env(self, model: Address) -> dict[str, str]:
        return {"GOOGLE_GEMINI_BASE_URL": model.root_url, "GEMINI_API_KEY": model.key}
