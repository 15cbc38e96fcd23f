"""Running: the runner, harnesses, and the join between an agent's calls and the world. Start with `runner.py`."""
