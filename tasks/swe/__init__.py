"""Repairing repositories: trees, loaders of benchmark formats, makers of new tasks. Start with `repair.py`."""
