"""What a command-line harness is to palestra: how to install it, point it at a model, prompt it and read its end.

    class MyAgent(HarnessRecipe):
        name = "my-agent"
        dialects = ("chat",)
        install = OnPath("my-agent", ("pipx", "install", "my-agent"))
        shell = "bash"

        def launch(self, program: str, prompt: str, model: Address) -> Launch:
            env = {"OPENAI_BASE_URL": f"{model.root_url}/v1", "OPENAI_API_KEY": model.key}
            return Launch((program, "--yes", "--model", model.name, prompt), env)

Register it with `recipes.register(MyAgent())`, or from a package of its own by an entry point in the group
"palestra.harnesses". `palestra harness check my-agent` shows whether what it does is recorded faithfully.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from palestra.rollouts.errors import RecipeError
from palestra.rollouts.harnesses.place import Ended
from palestra.rollouts.harnesses.recipes.install import Install

DialectName = Literal["chat", "responses", "anthropic", "gemini"]
ToolUse = tuple[str, Mapping[str, Any]]
"""A tool of the harness and its arguments."""


@dataclass(frozen=True, slots=True)
class Address:
    """The model, as a harness inside of its place sees it."""

    root_url: str
    """http://host:port, without a version."""
    key: str
    dialect: DialectName
    name: str = "palestra"
    context_tokens: int = 128_000
    """For harnesses that must be told."""
    max_reply_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class Launch:
    """One command. `files` are texts to write first, by path in the home directory."""

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)


class HarnessRecipe(ABC):
    """One harness. Stateless: one instance serves all rollouts."""

    name: ClassVar[str]
    dialects: ClassVar[tuple[DialectName, ...]]
    """APIs that it can speak, the preferred one first."""
    install: ClassVar[Install]
    shell: ClassVar[str]
    """Its tool that runs a shell command, called with `command`; for scripted sessions."""
    resumes: ClassVar[bool] = False
    """Whether it can go on with the conversation in its home directory: `resume` is there."""
    resumption_forks: ClassVar[bool] = False
    """Whether it then sends another history than before, which begins a new branch."""

    @abstractmethod
    def launch(self, program: str, prompt: str, model: Address) -> Launch:
        """Work on `prompt` without a human and exit. `program` is what `install` found."""

    def resume(self, program: str, prompt: str, model: Address) -> Launch:
        """Go on with the conversation that is in the home directory. Raises RecipeError where it cannot."""
        raise RecipeError(f"{self.name} cannot go on with a conversation that has ended")

    def problem(self, ended: Ended) -> str | None:
        """What broke in the harness itself; None where it came to an end of its own, good or bad.

        What the model did wrong is no problem, nor is an API error: the proxy knows of those. A harness that
        exits 0 after an error, or 1 after a reply that was cut off, says here what it means by it.
        """
        if ended.exit_code == 0:
            return None
        return f"exit code {ended.exit_code}: {ended.tail}"

    def answer(self, ended: Ended) -> str:
        """The last words to the user."""
        return ended.stdout.strip()

    # How a scripted model has to speak to this harness.

    def shell_use(self, command: str) -> ToolUse:
        """The tool call that runs `command`."""
        return self.shell, {"command": command}

    def write_use(self, path: str, text: str) -> ToolUse:
        """The tool call that makes a file of one line; by the shell where there is no tool for it."""
        return self.shell_use(f"echo '{text}' > {path}")

    def last_use(self, text: str) -> ToolUse | None:
        """The tool call that ends a session, where text alone does not."""
        return None
