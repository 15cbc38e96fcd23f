"""Repairing repositories: source trees, loaders of benchmark formats, and makers of new tasks. Start with `repair.py`."""
