"""Grading repairs by running tests on a machine the agent has never touched. Start with `grader.py`."""
