"""palestra/WebOffline-v0: act along a recorded trajectory, as UI-S1 does (semi-online, arXiv:2509.11543).

Each observation is that of the recording; each action is compared with the recorded one (`rewards/web_actions.py`).
Where it matches, the recording goes on under the policy's own history. Where it does not, the recorded action is put
in its place, up to `patches` times in an episode, and the agent is told; after that the episode ends. The score is 1
where every step matched without a patch; `parts` has the progress and the mean reward of the actions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from palestra.envs.env import TaskEnv
from palestra.envs.errors import EnvSetupError
from palestra.envs.tools import ToolError, tool
from palestra.rewards.web_actions import action_reward
from palestra.tasks.task import Task, TaskSet
from palestra.trajectories.model import Score

MATCH = 0.999
NAME, VERSION = "web-offline", "1"


@dataclass(frozen=True, slots=True)
class _Progress:
    """How far an episode is."""

    rewards: tuple[float, ...] = ()
    turn: int | None = None
    """Of the last action that was compared."""
    patched: int = 0
    failed: bool = False


class OfflineEnv(TaskEnv):
    """A recorded trajectory. See the module."""

    family: ClassVar[str] = "web-offline"
    any_thread: ClassVar[bool] = True

    def __init__(self, tasks: TaskSet | str | None = None, patches: int = 1) -> None:
        """`patches`: mismatches that are put right before the episode ends; 0 is plain offline learning."""
        super().__init__(tasks)
        self._patches = patches
        self._progress = _Progress()

    @tool
    def act(self, type: str, target: list[float] | str | None = None, value: str | None = None) -> str:
        """Act on the screen: a type, a point x,y or a name, and a text."""
        if not type.strip():
            raise ToolError("say what to do, for example click")
        step = self._steps[len(self._progress.rewards)]
        reward = action_reward({"type": type, "target": target, "value": value}, step["action"]).value or 0.0
        right = reward >= MATCH
        rewards = (*self._progress.rewards, reward)
        progress = replace(self._progress, rewards=rewards, turn=self._running().steps)
        if not right:
            progress = replace(
                progress, patched=progress.patched + 1, failed=progress.patched >= self._patches
            )
        self._progress = progress
        if progress.failed or len(progress.rewards) == len(self._steps):
            self.finish()
            return "the episode is over"
        note = "" if right else f"instead this was done: {json.dumps(step['action'])}\n"
        return note + self._shown()

    def solution(self) -> Sequence[str]:
        """The recorded actions; of a box its middle."""
        return [
            json.dumps({"name": "act", "arguments": _as_arguments(step["action"])}) for step in self._steps
        ]

    def cheats(self) -> Mapping[str, Sequence[str]]:
        """Letting every mistake be put right."""
        wrong = json.dumps({"name": "act", "arguments": {"type": "nothing"}})
        return {"patched all the way": [wrong] * min(len(self._steps), self._patches + 1)}

    def _begin(self, task: Task) -> str:
        steps = task.data.get("steps")
        if not isinstance(steps, list) or not steps:
            raise EnvSetupError(f"task {task.id!r} has no steps in its data")
        self._steps: list[dict[str, Any]] = steps
        self._progress = _Progress()
        return f"{task.instruction}\n{self._shown()}"

    def _shown(self) -> str:
        return str(self._steps[len(self._progress.rewards)]["observation"])

    def _anchor(self) -> str:
        return f"step {len(self._progress.rewards)}"

    def _state(self) -> str:
        return repr(self._progress)

    def _score(self) -> Score:
        done = self._progress
        count, total = len(done.rewards), len(self._steps)
        matched = sum(reward >= MATCH for reward in done.rewards)
        parts = {"progress": matched / total, "action_reward": sum(done.rewards) / total}
        why = f"{matched} of {total} actions matched, {done.patched} were put right"
        return Score(float(count == total and matched == total), True, parts, NAME, VERSION, why)

    def _matched(self) -> bool:
        """An action that could not be compared is not the expert's."""
        done = self._progress
        return done.turn == self._running().steps - 1 and done.rewards[-1] >= MATCH

    def _freeze(self) -> _Progress:
        return self._progress

    def _thaw(self, world: _Progress) -> None:
        self._progress = world
        self._steps = self.task.data["steps"]


def _as_arguments(action: Mapping[str, Any]) -> dict[str, Any]:
    target = action.get("target")
    if isinstance(target, list) and len(target) == 4:
        target = [target[0] + target[2] / 2, target[1] + target[3] / 2]
    return {k: v for k, v in {**action, "target": target}.items() if v is not None}
