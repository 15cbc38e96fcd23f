"""What happened, exactly: the records of a rollout, the token graph, the store.

Start with `model.py`. Nothing here knows how a rollout was produced or what it will be used for.
"""
