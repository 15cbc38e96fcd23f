"""How an outcome is judged. Start with `score.py`."""
