"""Repair a package by hand in palestra/Swe-v0, try to cheat, and read what the grader says.

python examples/repair_a_package.py
"""

import json
from typing import cast

import gymnasium

from palestra.envs.env import TaskEnv
from palestra.tasks.registry import find_task


def call(name: str, **arguments: str) -> str:
    return json.dumps({"name": name, "arguments": arguments})


env = cast(TaskEnv, gymnasium.make("palestra.envs:palestra/Swe-v0").unwrapped)
task = find_task("swe-tiny", "swe-tiny/intervals/03-remove-return")
statement, info = env.reset(options={"task": task})
print(statement)
start = env.snapshot()
for action in (
    call("shell", command="python3 -m pytest -q 2>&1 | tail -1 | cut -d, -f1"),
    call("shell", command="rm -r tests; echo x > notes; ls"),
):
    observation, *_, info = env.step(action)
    print(f"> {action}\n{observation}\n  anchor {info['anchor']}")
print(f"without the tests: {env.score().value}, {env.score().evidence}")
env.restore(start)
for action in env.solution():
    observation, reward, terminated, truncated, info = env.step(action)
print(f"with the solution: {reward}, {env.score().evidence}")
env.close()
