"""Answer a question of two hops by searching, through the Gymnasium API.

python examples/search_a_corpus.py
"""

import json
from typing import cast

import gymnasium

from palestra.envs.env import TaskEnv
from palestra.tasks.registry import load_tasks

env = cast(TaskEnv, gymnasium.make("palestra.envs:palestra/Search-v0").unwrapped)
task = load_tasks("search-hops", split="test")[0]
question, _ = env.reset(options={"task": task})
print(question)
for action in (
    json.dumps({"name": "search", "arguments": {"query": task.instruction}}),
    *env.solution(),  # what a perfect agent does: search for each hop, then answer with citations
):
    observation, reward, terminated, truncated, info = env.step(action)
    print(f"> {action}\n{observation}\n  reward {reward:g}, anchor {info['anchor']}")
for name, value in env.score().parts.items():
    print(f"{name} {value:g}")
