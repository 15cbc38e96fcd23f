"""Credit for single decisions, from plain lists: GRPO next to GiGPO.

    python examples/gigpo_advantages.py

Four attempts at one task. All begin in the hall; two take the stairs, two the lift, and one of each arrives. GRPO
credits a rollout as a whole. GiGPO also compares the decisions that were taken in the same place.
"""

from palestra.training.advantages import gigpo, grpo
from palestra.training.table import StepTable

rows = [  # rollout, turn, where the decision was taken, reward
    ("a", 0, "hall", 0.0),
    ("a", 1, "stairs", 1.0),
    ("b", 0, "hall", 0.0),
    ("b", 1, "stairs", 0.0),
    ("c", 0, "hall", 0.0),
    ("c", 1, "lift", 0.0),
    ("c", 2, "lift", 1.0),
    ("d", 0, "hall", 0.0),
    ("d", 1, "lift", 0.0),
]
rollout, turn, anchor, reward = zip(*rows, strict=True)
table = StepTable.from_columns(
    group=["task"] * len(rows), rollout=rollout, turn=turn, anchor=anchor, reward=reward
)

print("rollout  turn  anchor  reward    GRPO   GiGPO")
for row, whole, step in zip(rows, grpo(table), gigpo(table, gamma=0.9), strict=True):
    print(f"{row[0]:<8} {row[1]:>4}  {row[2]:<6} {row[3]:>7} {whole:>+7.2f} {step:>+7.2f}")
