"""A world that does, and breaks, what its task says: for tests of runners, harnesses and trainers.

    task = puppet_task("one", fault="reset")
    task = puppet_task("two", turns=3, step_s=0.1)

`fault` names one of `FAULTS`; `step_s` and `grade_s` are seconds that a step and the grading take. The agent
may `say` something, which is echoed, and `submit` a value, which is the score.
"""

from __future__ import annotations

import threading
import time
from typing import Any, ClassVar

import gymnasium
import orjson

from palestra.envs.env import TaskEnv
from palestra.envs.errors import EnvSetupError
from palestra.envs.tools import tool
from palestra.rewards.score import GraderError
from palestra.tasks.task import Budget, Task
from palestra.trajectories.model import Score

ENV_ID = "palestra-testing/Puppet-v0"

FAULTS = {
    "reset": "reset raises EnvSetupError",
    "step": "a step raises RuntimeError",
    "stop iteration": "a step raises StopIteration, which no future can carry",
    "exit": "a step raises SystemExit",
    "observation": "a step returns an observation that is not Unicode text",
    "reward": "a step returns a reward that is not a number",
    "anchor": "a step returns no anchor",
    "first anchor": "reset returns no anchor",
    "grader": "grading raises GraderError",
    "grader bug": "grading raises KeyError",
    "invalid score": "grading finds nothing to judge",
    "no score": "grading returns None",
    "close": "close raises RuntimeError",
}


class Puppet(TaskEnv):
    """See the module. `made` lists all instances, each of which notes what was done to it."""

    family: ClassVar[str] = "puppet"
    made: ClassVar[list[Puppet]] = []

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self.resets = self.closed = 0
        self.stepping = False
        self._said: list[str] = []
        self._value = 0.0
        self._fault = ""
        self.made.append(self)

    @tool
    def say(self, text: str = "") -> str:
        """Say something."""
        return f"heard {text}"

    @tool
    def submit(self, value: float = 1.0) -> str:
        """Hand in the score."""
        self._value = value
        self.finish()
        return f"submitted {value:g}"

    def reset(self, **options: Any) -> tuple[str, dict[str, Any]]:
        """Begin, or fail to."""
        self.threads.add(threading.get_ident())
        observation, info = super().reset(**options)
        return observation, {} if self._fault == "first anchor" else info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Echo, or break."""
        self.threads.add(threading.get_ident())
        self.stepping = True
        time.sleep(self.task.data.get("step_s", 0.0))
        self._said.append(action)
        self.stepping = False
        self._break()
        observation, reward, terminated, truncated, info = super().step(action)
        observation = "\ud800" if self._fault == "observation" else observation
        reward = float("nan") if self._fault == "reward" else reward
        return observation, reward, terminated, truncated, {} if self._fault == "anchor" else info

    def close(self) -> None:
        """Note it. Raises AssertionError in the middle of a step."""
        if self.stepping:
            raise AssertionError("closed in the middle of a step")
        self.threads.add(threading.get_ident())
        self.closed += 1
        if self._fault == "close":
            raise RuntimeError("the door is stuck")

    def _begin(self, task: Task) -> str:
        self.resets += 1
        self._said, self._value, self._fault = [], 0.0, task.data.get("fault", "")
        if self._fault == "reset":
            raise EnvSetupError("there is no stage")
        return task.instruction

    def _anchor(self) -> str:
        return "\n".join(self._said)

    def _break(self) -> None:
        raised = {"step": RuntimeError, "stop iteration": StopIteration, "exit": SystemExit}.get(self._fault)
        if raised is not None:
            raise raised("the string snapped")

    def _score(self) -> Score:
        time.sleep(self.task.data.get("grade_s", 0.0))
        match self._fault:
            case "grader":
                raise GraderError("the gold is gone")
            case "grader bug":
                raise KeyError("gold")
            case "invalid score":
                return Score(None, False, evidence="no evidence was left")
            case "no score":
                return None  # type: ignore[return-value]
        return Score(self._value, True, {"value": self._value}, "puppet", "1")


gymnasium.register(ENV_ID, entry_point=f"{__name__}:Puppet", disable_env_checker=True, order_enforce=False)


def puppet_task(name: str, *, turns: int = 5, tokens: int = 4096, wall_s: float = 60.0, **data: Any) -> Task:
    """A task for `Puppet`. Raises ValueError for an unknown fault."""
    if data.get("fault", "step") not in FAULTS:
        raise ValueError(f"there is no fault {data['fault']!r}; there are {', '.join(FAULTS)}")
    budget = Budget(turns=turns, tokens=tokens, wall_s=wall_s)
    return Task(
        id=name,
        family="puppet",
        env=ENV_ID,
        split="train",
        instruction=f"Do {name}.",
        data=data,
        budget=budget,
    )


def tool_call(name: str, **arguments: Any) -> str:
    """A tool call as Qwen3 writes it."""
    body = orjson.dumps({"name": name, "arguments": arguments}).decode()
    return f"<tool_call>\n{body}\n</tool_call>"
