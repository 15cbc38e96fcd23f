"""Running: the runner, harnesses, and the join between calls and the world. Start with `runner.py`."""
