"""The policy that a run began with, which penalties pull towards and confidence is measured against."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from palestra.training.batch import make_batch
from palestra.training.config import TrainConfig
from palestra.training.decisions import LogRatios
from palestra.training.layouts import MicroBatch
from palestra.training.policy import Policy
from palestra.trajectories.sample import Sample


class Reference:
    """A copy of `policy` as it is now, which no update changes. Not for sharded weights."""

    def __init__(self, policy: Policy) -> None:
        self._source = policy
        self._policy = Policy(copy.deepcopy(policy.model), policy.options)

    def logprobs(self, rows: MicroBatch) -> Tensor:
        """Of each loss token (N,), at the temperature of the policy."""
        self._policy.temperature = self._source.temperature
        with torch.no_grad():
            return self._policy.logprobs(rows)[0]

    def log_ratios(self, views: Sequence[Sample], config: TrainConfig) -> LogRatios:
        """Recorded log-probabilities minus the reference's, summed over the tokens of each call of `views`."""
        keys = list(
            dict.fromkeys((v.rollout_id, int(q)) for v in views for q in np.unique(v.calls[v.loss_mask]))
        )
        if not keys:
            return {}
        total = np.zeros(len(keys))
        numbered = make_batch(views, {key: float(number) for number, key in enumerate(keys)})
        for part in numbered.micro_batches(config.token_budget, config.layout):
            rows = part.to(torch.device(self._source.options.device))
            ratios = (rows.logprobs - self.logprobs(rows)).double().cpu().numpy()
            np.add.at(total, part.advantages.numpy().astype(np.int64), ratios)
        return dict(zip(keys, total.tolist(), strict=True))
