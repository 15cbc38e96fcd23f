"""An environment of your own, with a tool, a task and a score, and an agent that plays it.

    python examples/own_environment.py

The agent is a script here. Put a model in its place with `rollouts.local.child_engine(model_dir)`.
"""

import asyncio
import tempfile

import gymnasium

from palestra.envs.env import TaskEnv
from palestra.envs.tools import tool
from palestra.harness_proxy.engines.scripted import ScriptedEngine
from palestra.harness_proxy.rendering import Rendering
from palestra.harness_proxy.testing import make_tiny_tokenizer
from palestra.rollouts.local import local
from palestra.rollouts.runner import RunSpec, group_jobs
from palestra.rollouts.testing import tool_call
from palestra.tasks.task import Budget, Task
from palestra.trajectories.model import Score


class Guess(TaskEnv):
    """Find a number between 1 and 100."""

    def _begin(self, task: Task) -> str:
        self._seen: tuple[int, ...] = ()
        return task.instruction

    @tool
    def guess(self, number: int) -> str:
        """Name a number, and hear whether the hidden one is higher or lower."""
        self._seen += (number,)
        hidden = self.task.data["hidden"]
        if number == hidden:
            self.finish()
            return "found"
        return "higher" if number < hidden else "lower"

    def _anchor(self) -> str:
        return str(sorted(self._seen))  # the same guesses in another order are the same decision point

    def _score(self) -> Score:
        found = self.task.data["hidden"] in self._seen
        return Score(float(found), True, {"guesses": len(self._seen)}, "guess", "1")

    def _freeze(self) -> tuple[int, ...]:
        return self._seen

    def _thaw(self, world: tuple[int, ...]) -> None:
        self._seen = world


gymnasium.register("examples/Guess-v0", entry_point=lambda: Guess(), disable_env_checker=True)
easy, hard = (
    Task(
        id=f"guess/{hidden}",
        family="guess",
        env="examples/Guess-v0",
        split="train",
        instruction="I am thinking of a number between 1 and 100.",
        data={"hidden": hidden},
        budget=Budget(turns=4),
    )
    for hidden in (75, 99)
)


async def main() -> None:
    """Two attempts at each task."""
    with tempfile.TemporaryDirectory() as directory:
        rendering = Rendering.load(make_tiny_tokenizer(directory))
    halves = [tool_call("guess", number=number) for number in (50, 75, 88, 94)]
    async with local(ScriptedEngine(rendering, halves), rendering) as stack:
        trajectories = await stack.runner.run(group_jobs([easy, hard], 2), RunSpec("try"))
    for trajectory in trajectories:
        print(f"{trajectory.rollout.rollout_id}: reward {trajectory.rollout.reward}")
        for step in trajectory.steps:
            print(f"  at {step.anchor:<16} {step.action} -> {step.observation}")


asyncio.run(main())
