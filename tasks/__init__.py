"""What to solve: tasks, task sets, their registry and loaders. Start with `task.py`."""
