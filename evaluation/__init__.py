"""Judging runs: pass@k with intervals, paired comparison of two runs, and a report that a person reads.

Start with `passk.py`. Only measurements count: a rollout without a valid score is reported as a number of its
own and never enters a mean.
"""
