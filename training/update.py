"""The update of one training step: check what was recorded, then one optimizer step per batch.

Before any weight moves, the log-probability of every trained token of this step's policy is computed again. It must
be what the engine recorded: a gradient through other probabilities would be the gradient of something else. Samples
with tokens of older policies, replayed or stale, cannot be checked so; their versions tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from palestra.training.batch import Batch
from palestra.training.config import TrainConfig
from palestra.training.credit import needs_reference
from palestra.training.decisions import LogRatios
from palestra.training.errors import ConfigError, DivergedError, OutOfMemoryError, UnfaithfulError
from palestra.training.layouts import MicroBatch
from palestra.training.losses import Objective, learning_rate_scale
from palestra.training.losses.segments import dense, sums
from palestra.training.optimizer import Offloaded, Optimizer, optimizers
from palestra.training.policy import Policy
from palestra.training.proximal import proximals
from palestra.training.reference import Reference
from palestra.training.sharded import Team, meeting, whole
from palestra.trajectories.model import Trajectory
from palestra.trajectories.sample import samples


class Updater:
    """Improves `policy` as `config` says. Its state is that of the optimizer and the proximal policy."""

    def __init__(self, policy: Policy, config: TrainConfig) -> None:
        """`policy` as it is now is what a KL penalty pulls towards, and what `log_ratios` compare with.

        Raises ConfigError for either with sharded weights, which cannot be copied.
        """
        if config.offload_optimizer and policy.team.size > 1:
            raise ConfigError("offload_optimizer needs one process: sharding makes the state small instead")
        referred = bool(config.kl_weight) or needs_reference(config)
        if referred and policy.team.size > 1:
            raise ConfigError(
                "kl_weight and confidence_punished need one process: weights that are sharded over several have no copy"
            )
        self._policy, self._config = policy, config
        self._optimizer = _optimizer(policy, config)
        self._proximal = proximals[config.proximal](**config.proximal_options)
        self._objective = objective(config)
        self._reference = Reference(policy) if referred else None
        self.token_budget = config.token_budget
        """Of a micro-batch; smaller than configured after memory ran out."""

    who = "updater"

    @property
    def team(self) -> Team:
        """Those who update together."""
        return self._policy.team

    @meeting
    def run(self, batches: Sequence[Batch], version: int) -> dict[str, float]:
        """One optimizer step per batch, at least one. Returns loss, entropy, kl, clipped, grad_norm as means over
        the batches, logprob_gap, the largest over all samples of policy `version`, in nats, and the `token_budget` that
        memory was enough for: where a micro-batch does not fit, all are computed again with half of it.

        Raises UnfaithfulError before any weight is changed, DivergedError without using what is not finite, and
        OutOfMemoryError where no smaller micro-batch can help.
        """
        torch.set_num_threads(self._config.threads)
        while True:
            self._steps = 0
            try:
                return self._run(batches, version) | {"token_budget": self.token_budget}
            except torch.OutOfMemoryError as error:
                short = error
            self._shrink(batches, short)  # outside, where the error no longer holds on to what was computed

    def _run(self, batches: Sequence[Batch], version: int) -> dict[str, float]:
        self._optimizer.zero_grad()
        cut = [self._mine(batch) for batch in batches]
        gaps = [self._gap(rows, version) for later in cut[1:] for rows in later]
        olds = [[self._proximal.before(self._policy, rows) for rows in parts] for parts in cut]
        updates = [
            self._optimize(parts, old, version, first=index == 0)
            for index, (parts, old) in enumerate(zip(cut, olds, strict=True))
        ]
        means = {name: float(np.mean([u[name] for u in updates])) for name in updates[0]}
        return means | {"logprob_gap": max([updates[0]["logprob_gap"], *gaps])}

    def _shrink(self, batches: Sequence[Batch], short: torch.OutOfMemoryError) -> None:
        """Halve the token budget. Raises OutOfMemoryError after an optimizer step, which must not be taken twice, with
        others who have not run out, and where every micro-batch is a single sample already."""
        single = all(len(set(p.sequence.tolist())) < 2 for batch in batches for p in self._cut(batch))
        if self._steps or self.team.size > 1 or single:
            raise OutOfMemoryError(self.token_budget, str(short)) from short
        self.token_budget = max(self.token_budget // 2, 1)
        self._optimizer.zero_grad()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    @meeting
    def state_dict(self) -> dict[str, Any]:
        """What training continues from, besides the weights."""
        return {"optimizer": self._optimizer.state_dict(), "proximal": self._proximal.state_dict()}

    @meeting
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self._optimizer.load_state_dict(state["optimizer"])
        self._proximal.load_state_dict(state["proximal"])

    def _gap(self, rows: MicroBatch, version: int) -> float:
        """Checked now, since after the first update the weights are no longer the recorded ones."""
        with torch.no_grad():
            return self._checked(self._policy.logprobs(rows)[0], rows, version)

    def _optimize(
        self, parts: Sequence[MicroBatch], olds: Sequence[Tensor | None], version: int, *, first: bool
    ) -> dict[str, float]:
        """One optimizer step; `first`: with the weights of `version`."""
        total = dict.fromkeys(("loss", "entropy", "kl", "clipped", "logprob_gap"), 0.0)
        team = self._policy.team
        share = 1.0 / max(team.total(sum(float(rows.weights.sum()) for rows in parts)), 1e-12)
        log_ratios = list[Tensor]()
        for rows, before in zip(parts, olds, strict=True):
            logprobs, entropy = self._policy.logprobs(rows)
            if first:
                total["logprob_gap"] = max(total["logprob_gap"], self._checked(logprobs, rows, version))
            old = before if before is not None else self._proximal.approximate(logprobs, rows, version)
            reference = self._reference.logprobs(rows) if self._reference and self._config.kl_weight else None
            result = self._objective(logprobs, entropy, rows.tokens(old, reference))
            result.loss.backward()  # type: ignore[no-untyped-call]
            log_ratios.append(sums(old - rows.logprobs, *dense(rows.sequence)))
            total["loss"] += float(result.loss.detach())
            total["kl"] += float(result.kl) * share
            total["clipped"] += float(result.clipped) * share
            total["entropy"] += float((entropy.detach() * rows.weights).sum()) * share
        sums_over_team = {n: team.total(total[n]) for n in ("loss", "entropy", "kl", "clipped")}
        return total | sums_over_team | {"grad_norm": self._step(team.every(torch.cat(log_ratios)))}

    def log_ratios(self, trajectories: Sequence[Trajectory]) -> LogRatios | None:
        """log(sampling policy / reference) of the decisions of scored rollouts, where credit is computed from it."""
        if self._reference is None or not needs_reference(self._config):
            return None
        views = [s for t in trajectories if t.rollout.reward is not None for s in samples(t)]
        return self._reference.log_ratios(views, self._config)

    def _mine(self, batch: Batch) -> list[MicroBatch]:
        """What this process computes of `batch`."""
        device = torch.device(self._policy.options.device)
        return [part.to(device) for part in self._policy.team.part(self._cut(batch))]

    def _cut(self, batch: Batch) -> list[MicroBatch]:
        return list(batch.micro_batches(self.token_budget, self._config.layout))

    def _step(self, log_ratios: Tensor) -> float:
        """Follow the gradients; returns their norm before it was clipped. `log_ratios`: of each sequence."""
        clip = torch.nn.utils.clip_grad_norm_(list(self._policy.parameters()), self._config.max_grad_norm)
        norm = float(whole({"norm": clip})["norm"])
        if not np.isfinite(norm):
            raise DivergedError(f"the gradient's norm is {norm}; nothing was updated with it")
        ratios = log_ratios.double().clamp(-20.0, 20.0).exp().cpu().numpy()
        self._steps += 1
        self._optimizer.step(learning_rate_scale(ratios) if self._config.scale_by_ess else 1.0)
        self._proximal.updated(self._policy)
        return norm

    def _checked(self, logprobs: Tensor, rows: MicroBatch, version: int) -> float:
        """Largest difference between `logprobs` and the recorded ones of policy `version`, in nats.

        Of the samples that are its own from the first token to the last: in a reply that goes on when weights change,
        later tokens are sampled with keys and values of the earlier policy.
        """
        difference = (logprobs.detach() - rows.logprobs).abs()
        sequence, size = dense(rows.sequence)
        foreign = sums((rows.versions != version).to(difference.dtype), sequence, size)
        own = difference[(foreign == 0)[sequence]]
        broken = self._policy.team.total(float((~difference.isfinite()).sum()))
        gap = self._policy.team.largest(float(own.max()) if len(own) else 0.0)
        if broken:
            raise DivergedError("the model gives log-probabilities that are not finite; nothing was updated")
        if gap > self._config.max_logprob_gap:
            raise UnfaithfulError(gap, self._config.max_logprob_gap)
        return gap


def _optimizer(policy: Policy, config: TrainConfig) -> Optimizer:
    made = optimizers[config.optimizer](policy.model, matrix_lr=config.matrix_lr, other_lr=config.other_lr)
    return Offloaded(made) if config.offload_optimizer else made


def objective(config: TrainConfig) -> Objective:
    """What `config` has an update minimise."""
    return Objective(
        loss=config.loss,
        loss_options=config.loss_options,
        correction=config.correction,
        correction_options=config.correction_options,
        kl_weight=config.kl_weight,
        kl=config.kl,
        entropy_weight=config.entropy_weight,
        token_share=config.token_share,
    )
