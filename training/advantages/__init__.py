"""Credit assignment: pure functions from a step table to one advantage per decision.

    advantages = estimators["gigpo"](table, gamma=0.95)
    advantages = estimators["gigpo"](table, compat="verl-agent")

Every estimator has the signature `(table: StepTable, *, ...) -> float32[S]`, in the row order of the table. Defaults
are what is right: statistics are per rollout, equal groups and rollouts alone in their group give 0, rows without a
valid score are in no statistic and get 0. `compat` names what published code does instead.
"""

from collections.abc import Callable, Mapping

from palestra.training.advantages.a3 import a3
from palestra.training.advantages.gae import gae
from palestra.training.advantages.gigpo import gigpo
from palestra.training.advantages.gpg import gpg
from palestra.training.advantages.grpo import dr_grpo, grpo
from palestra.training.advantages.hgpo import hgpo
from palestra.training.advantages.mc_grpo import mc_grpo
from palestra.training.advantages.opo import opo
from palestra.training.advantages.passk import passk_grpo
from palestra.training.advantages.prorag import prorag
from palestra.training.advantages.reinforce_plus_plus import reinforce_plus_plus, reinforce_plus_plus_baseline
from palestra.training.advantages.remax import remax
from palestra.training.advantages.reweighting import (
    confidence_punished,
    duration_weighted,
    novelty_sharpened,
    weighted,
)
from palestra.training.advantages.rloo import rloo
from palestra.training.advantages.selection import d3s
from palestra.training.advantages.shaping import gated
from palestra.training.advantages.state_rloo import state_rloo
from palestra.training.advantages.token_baseline import optimal_token_baseline
from palestra.training.advantages.tree_value import portool, treeps_rag
from palestra.training.advantages.treepo import spo, tree_progress, treepo
from palestra.training.advantages.ui_s1 import ui_s1
from palestra.training.advantages.vcpo import vcpo
from palestra.training.table import StepTable
from palestra.trajectories.model import FloatArray

Estimator = Callable[..., FloatArray]

estimators: dict[str, Estimator] = {
    "grpo": grpo,
    "gigpo": gigpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "opo": opo,
    "gpg": gpg,
    "remax": remax,
    "gae": gae,
    "passk_grpo": passk_grpo,
    "mc_grpo": mc_grpo,
    "hgpo": hgpo,
    "state_rloo": state_rloo,
    "ui_s1": ui_s1,
    "a3": a3,
    "treepo": treepo,
    "tree_progress": tree_progress,
    "spo": spo,
    "treeps_rag": treeps_rag,
    "portool": portool,
    "optimal_token_baseline": optimal_token_baseline,
    "prorag": prorag,
    "vcpo": vcpo,
}
"""Estimators by name."""

reshapers: Mapping[str, Callable[..., StepTable]] = {"gated": gated}
"""Changes of the rewards before, by name: (table, **options) to a table."""

adjusters: Mapping[str, Estimator] = {
    "novelty_sharpened": novelty_sharpened,
    "confidence_punished": confidence_punished,
    "duration_weighted": duration_weighted,
    "weighted": weighted,
    "d3s": d3s,
}
"""Changes of the advantages after, by name: (advantages, table, **options) to float32 (S,)."""

__all__ = [
    "Estimator",
    "a3",
    "adjusters",
    "dr_grpo",
    "estimators",
    "gae",
    "gigpo",
    "gpg",
    "grpo",
    "hgpo",
    "mc_grpo",
    "opo",
    "optimal_token_baseline",
    "passk_grpo",
    "portool",
    "prorag",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "remax",
    "reshapers",
    "rloo",
    "spo",
    "state_rloo",
    "tree_progress",
    "treepo",
    "treeps_rag",
    "ui_s1",
    "vcpo",
]
