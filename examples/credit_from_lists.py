"""Step-level credit from plain lists: GRPO gives a rollout one number, GiGPO tells its decisions apart.

python examples/credit_from_lists.py
"""

from palestra.training.advantages import estimators
from palestra.training.table import StepTable

# Two rollouts of one task. Both start in the same state; "b" opens the wrong door there and never recovers.
table = StepTable.from_columns(
    group=["task"] * 5,
    rollout=["a", "a", "a", "b", "b"],
    turn=[0, 1, 2, 0, 1],
    reward=[0.0, 0.0, 1.0, 0.0, 0.0],
    anchor=["hall", "left room", "safe", "hall", "right room"],
)
for name in ("grpo", "rloo", "gigpo", "hgpo"):
    print(f"{name:>6}", [round(float(a), 2) for a in estimators[name](table)])
