"""Recorded rollouts in the forms that other trainers and tools read.

Start with `formats.py`, which lists them. What carries loss is decided in one place, `trajectories.sample`:
each sampled token at most once. A rollout without a valid score is never exported with a reward of 0: forms
for training leave it out, the others give it the reward null.
"""
