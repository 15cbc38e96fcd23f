"""mini-swe-agent: one tool, bash, and litellm below it. Not streamed."""

from __future__ import annotations

from typing import ClassVar

from palestra.rollouts.harnesses.place import Ended
from palestra.rollouts.harnesses.recipes.install import Install, Venv
from palestra.rollouts.harnesses.recipes.recipe import Address, DialectName, HarnessRecipe, Launch, ToolUse

_SWITCHES = {
    "MSWEA_CONFIGURED": "true",
    "MSWEA_SILENT_STARTUP": "1",
    "MSWEA_COST_TRACKING": "ignore_errors",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


class MiniSweAgent(HarnessRecipe):
    """Ends by a bash command alone; a reply without one is answered with an error message, for ever."""

    name: ClassVar[str] = "mini-swe-agent"
    dialects: ClassVar[tuple[DialectName, ...]] = ("chat", "anthropic")
    install: ClassVar[Install] = Venv(("mini-swe-agent==2.4.6", "mcp"), "mini")
    shell: ClassVar[str] = "bash"

    def launch(self, program: str, prompt: str, model: Address) -> Launch:
        """The provider's name before the model's chooses the API."""
        if model.dialect == "chat":
            provider = "openai"
            env = {"OPENAI_API_KEY": model.key, "OPENAI_API_BASE": f"{model.root_url}/v1"}
        else:
            provider = "anthropic"
            env = {"ANTHROPIC_API_KEY": model.key, "ANTHROPIC_API_BASE": model.root_url}
        argv = (program, "-y", "--exit-immediately", "-m", f"{provider}/{model.name}", "-t", prompt)
        return Launch(argv, {**env, **_SWITCHES})

    def answer(self, ended: Ended) -> str:
        """What was submitted."""
        _, _, submitted = ended.stdout.rpartition("\nExit:\n")
        return submitted.partition("\nSaved trajectory to")[0].strip()

    def last_use(self, text: str) -> ToolUse:
        """Its own ending."""
        return self.shell_use(f"echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo '{text}'")
