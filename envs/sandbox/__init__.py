"""Isolated machines in which an agent's commands run. Start with `base.py`."""
