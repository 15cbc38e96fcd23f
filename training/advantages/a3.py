"""A^3: a robust backbone per rollout and, where decisions fork, what the choice was worth."""

from __future__ import annotations

import numpy as np

from palestra.training.advantages.groups import group_medians, group_stats, paired
from palestra.training.advantages.returns import rows_by_position
from palestra.training.table import Float64Array, StepTable
from palestra.trajectories.model import BoolArray, FloatArray, IntArray


def a3(
    table: StepTable,
    *,
    tree_weight: float = 1.0,
    gamma: float = 0.9,
    support_prior: float = 0.1,
    bound: float = 1.1,
    eps: float = 1e-6,
) -> FloatArray:
    """A_it = b * tanh((B_i / mean|B| + w * C_it / mean|C|) / b), experimental.

    B is `median_backbone`; C = support / (support + prior + eps) * return of `decision_returns`. Needs the column
    `action`. Source: Hoyant-Su/Agentic-RL-A3 main_entry/cli_agent_bash_coding/algo/A3_algo.py; its third part, the
    residual of bash intents, is left out. Assumed: means are over the valid decisions of the batch.

    Departures: the state of a decision is its anchor, at any turn, not a clustering of command prefixes.

    Returns float32 (S,). Raises ValueError without `action`.
    """
    valid = table.rollout_valid()[table.rollout]
    backbone = median_backbone(table, eps=eps)[table.rollout]
    state = paired(table.group, table.anchor)
    value, support = decision_returns(table, state, gamma=gamma, support_prior=support_prior, eps=eps)
    choice = support / (support + support_prior + eps) * value
    mixed = _unit(backbone, valid) + tree_weight * _unit(choice, valid)
    return np.where(valid, bound * np.tanh(mixed / bound), 0.0).astype(np.float32)


def median_backbone(table: StepTable, *, min_scale: float = 0.5, eps: float = 1e-6) -> Float64Array:
    """B_i = tanh((R_i - median_g R) / (max(1.4826 MAD_g, min_scale) + eps)), shape (number of rollouts,).

    Lower medians. Source: A3_algo.py _compute_prompt_backbone_advantage.
    """
    scores, group, valid = table.scores(), table.rollout_groups(), table.rollout_valid()
    deviation = np.where(valid, scores - group_medians(scores, group, valid)[group], 0.0)
    scale = np.maximum(1.4826 * group_medians(np.abs(deviation), group, valid), min_scale) + eps
    return np.tanh(deviation / scale[group])


def decision_returns(
    table: StepTable, state: IntArray, *, gamma: float = 0.9, support_prior: float = 0.1, eps: float = 1e-6
) -> tuple[Float64Array, Float64Array]:
    """(discounted gains of the choices from decision t on, their discounted support), shape (S,) each.

    The gain of a choice is n / (n + prior + eps) * (mean score of the n decisions in `state` (S,) that chose the
    same `action` - mean score of all in the state), where at least two actions were chosen; its support is the
    factor. Source: A3_algo.py _compute_tree_decision_return.

    Departures: a state in which all scores are equal is no fork; the code counts its support.
    """
    score = table.scores()[table.rollout]
    known = table.rollout_valid()[table.rollout] & (table.anchor >= 0) & (table.extra("action") >= 0)
    branch = paired(state, table.extra("action"))
    in_state = group_stats(score, state, known.astype(np.float64))
    in_branch = group_stats(score, branch, known.astype(np.float64))
    forks = known & in_state.informative[state] & (in_state.count[state] > in_branch.count[branch])
    n = in_branch.count[branch]
    shrink = np.where(forks, n / (n + support_prior + eps), 0.0)
    gain = np.where(forks, shrink * (in_branch.mean[branch] - in_state.mean[state]), 0.0)
    return _discounted(table, gain, gamma), _discounted(table, shrink, gamma)


def _discounted(table: StepTable, values: Float64Array, gamma: float) -> Float64Array:
    ahead = np.zeros(int(table.rollout.max(initial=-1)) + 1)
    result = np.empty(len(table))
    for rows in reversed(rows_by_position(table)):
        rollouts = table.rollout[rows]
        result[rows] = ahead[rollouts] = values[rows] + gamma * ahead[rollouts]
    return result


def _unit(values: Float64Array, valid: BoolArray) -> Float64Array:
    size = np.abs(values[valid]).mean() if valid.any() else 0.0
    return values / size if size > 0 else np.zeros_like(values)
