"""Play palestra/Sql-v0 by hand, through the Gymnasium API.

python examples/play_a_world.py
"""

from typing import cast

import gymnasium

from palestra.envs.env import TaskEnv
from palestra.tasks.registry import find_task

env = cast(TaskEnv, gymnasium.make("palestra.envs:palestra/Sql-v0").unwrapped)
task = find_task("sql-tiny", "sql-tiny/test/0000/highest")
question, info = env.reset(options={"task": task})
print(question)
for action in (
    '{"name": "list_tables", "arguments": {}}',
    '{"name": "describe", "arguments": {"table": "gate"}}',
    '{"name": "query", "arguments": {"sql": "SELECT price FROM gate"}}',
    "I believe it is the first one.",
    '{"name": "submit", "arguments": {"sql": "SELECT badge FROM gate ORDER BY weight DESC LIMIT 1"}}',
):
    observation, reward, terminated, truncated, info = env.step(action)
    print(
        f"> {action}\n{observation}\n  reward {reward:g}, anchor {info['anchor']}, valid {info['valid_action']}"
    )
print(env.score().evidence)
