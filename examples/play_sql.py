"""Play an environment by hand: actions are tool calls as JSON, observations are text.

python examples/play_sql.py
"""

import json

import gymnasium

import palestra.envs  # noqa: F401  (registers palestra/*)
from palestra.tasks.registry import find_task

env = gymnasium.make("palestra/Sql-v0")
task = find_task("sql-gym", "sql-gym/library/lookup")
observation, info = env.reset(seed=0, options={"task": task})
print(f"question: {observation}\n")

sql = "SELECT pages FROM book WHERE title = 'The Amber Tower'"
actions = [
    {"name": "list_tables", "arguments": {}},
    {"name": "describe", "arguments": {"table": "book"}},
    {"name": "look", "arguments": {}},  # not a tool: the answer says so, nothing is raised
    {"name": "query", "arguments": {"sql": sql}},
    {"name": "submit", "arguments": {"sql": sql}},
]
for action in actions:
    observation, reward, terminated, truncated, info = env.step(json.dumps(action))
    print(f"{action['name']:<12} reward {reward}  anchor {info['anchor']}\n  {observation}")
print(f"\nterminated {terminated}, truncated {truncated}, reward {reward}")
env.close()
