"""A world of your own: two tools, a task, a score; then a rollout of it by a scripted model, through the proxy.

python examples/write_a_world.py
"""

import tempfile

import gymnasium

from palestra.envs.env import TaskEnv
from palestra.envs.tools import ToolError, tool
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.testing import make_tiny_tokenizer
from palestra.rollouts.job import Job, RunSpec
from palestra.rollouts.local import local
from palestra.rollouts.loop import run
from palestra.tasks.task import Task
from palestra.trajectories.model import Score


class Vault(TaskEnv):
    """Find the number between 1 and 100 that opens the vault."""

    family = "vault"

    def _begin(self, task: Task) -> str:
        self._secret, self._low, self._opened = int(task.data["secret"]), 0, False
        return task.instruction

    @tool
    def compare(self, number: int) -> str:
        """Say whether the secret is larger than a number."""
        if not 1 <= number <= 100:
            raise ToolError(f"the secret is between 1 and 100, {number} is not")
        larger = self._secret > number
        self._low = max(self._low, number) if larger else self._low
        return "larger" if larger else "not larger"

    @tool
    def open(self, number: int) -> str:
        """Try to open the vault; there is one try."""
        self._opened = number == self._secret
        self.finish()
        return "it opens" if self._opened else "it stays shut"

    def _anchor(self) -> str:
        return f"larger than {self._low}"

    def _score(self) -> Score:
        return Score(float(self._opened), True, grader="vault", grader_version="1")


def call(name: str, number: int) -> str:
    """A tool call in the model's own words."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"number": {number}}}}}\n</tool_call>'


async def main() -> None:
    """Roll it out once."""
    gymnasium.register("example/Vault-v0", entry_point=lambda **_: Vault(), disable_env_checker=True)
    task = Task(
        id="vault/1",
        family="vault",
        env="example/Vault-v0",
        split="train",
        instruction="Open the vault.",
        data={"secret": 7},
    )
    rendering = Rendering.load(make_tiny_tokenizer(tempfile.mkdtemp()))
    engine = ScriptedEngine(rendering, [call("compare", 6), call("compare", 700), call("open", 7)])
    async with local(engine, rendering) as stack:
        (trajectory,) = await stack.runner.run([Job(task, "group-1")], RunSpec("example"))
    for step in trajectory.steps:
        print(f"[{step.anchor}] {step.action} -> {step.observation}")
    print("reward", trajectory.rollout.reward)


if __name__ == "__main__":
    run(main())
