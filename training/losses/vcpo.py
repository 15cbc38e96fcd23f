"""VCPO: smaller steps and a better baseline where few stale trajectories carry the gradient."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Average = Literal["mean", "median", "winsorized"]


def effective_sample_size(weights: Floats) -> float:
    """(sum w)^2 / sum w^2 of the importance weights of n trajectories, (n,); between 1 and n, 0 for none.

    Source: Kish 1965; mit-han-lab/vcpo staleness_utils.py compute_ess_info, with unclipped sequence ratios.
    """
    squares = float(np.square(weights).sum())
    return float(weights.sum()) ** 2 / squares if squares > 0 else 0.0


def learning_rate_scale(
    weights: Floats, *, base_share: float = 1.0, kind: Literal["sqrt", "linear"] = "sqrt"
) -> float:
    """Factor for the learning rate of one step: rho = ESS / n over `base_share`, at most 1; sqrt(rho) or rho.

    Put the learning rate back after the step. Source: mit-han-lab/vcpo megatron_actor.py
    _optimizer_step_with_buffer.
    """
    rho = min(1.0, effective_sample_size(weights) / max(len(weights), 1) / base_share)
    return rho**0.5 if kind == "sqrt" else rho


def off_policy_baseline(
    rewards: Floats,
    grad_norms: Floats,
    ratios: Floats | None = None,
    *,
    lengths: Floats | None = None,
    average: Average = "mean",
    eps: float = 1e-8,
) -> float:
    """b = sum_i W_i R_i / (sum_i W_i + eps), W_i = |grad log p_i|^2 ratio_i^2 [/ length_i^2].

    R_i (n,) are the rewards of the trajectories of one group, ratio_i their sequence importance ratios. The baseline
    of least variance; keep a reward-weighted and a plain gradient sum and subtract b times the second. `average`
    takes the weighted median or a mean winsorized to the weighted 5 and 95 percent quantiles instead. Source:
    mit-han-lab/vcpo README and staleness_utils.py compute_opob_baseline.

    Departures: gradient norms must be those of log p_i; the actor there passes norms that hold the ratio already and
    so applies ratio^4. Give `ratios` None for such norms.
    """
    weights = np.square(grad_norms) * (1.0 if ratios is None else np.square(ratios))
    weights = weights if lengths is None else weights / np.square(lengths)
    total = float(weights.sum())
    if total == 0:
        return 0.0
    if average == "median":
        return _quantile(rewards, weights, 0.5)
    if average == "winsorized":
        rewards = np.clip(rewards, _quantile(rewards, weights, 0.05), _quantile(rewards, weights, 0.95))
    return float((rewards * weights).sum()) / (total + eps)


def _quantile(values: Floats, weights: Floats, share: float) -> float:
    """Smallest value at which the weights so far reach `share` of all."""
    order = np.argsort(values, kind="stable")
    reached = np.searchsorted(np.cumsum(weights[order]), share * weights.sum())
    return float(values[order][min(int(reached), len(values) - 1)])
