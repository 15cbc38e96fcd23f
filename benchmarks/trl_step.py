"""One GRPO step of TRL against one update of ours, on the same rollouts: a part of train.py."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from palestra.training.batch import make_batch
from palestra.training.config import TrainConfig
from palestra.training.policy import Policy
from palestra.training.update import Updater
from palestra.trajectories.sample import Sample

Rollouts = Sequence[Sequence[Sample]]


def against_trl(model: Path, groups: Rollouts, scratch: Path, *, steps: int) -> dict[str, float]:
    """Seconds of both and their ratio; one optimizer step per step, all groups in each."""
    tokens = sum(int(s.loss_mask.sum()) for group in groups for s in group)
    theirs = _theirs(model, groups, scratch, steps)
    ours = _ours(model, groups, steps)
    return {
        "trl_step_s": theirs,
        "palestra_step_s": ours,
        "trained_tokens_per_s": tokens / ours,
        "trl_tokens_ratio": theirs / ours,
    }


def _ours(model: Path, groups: Rollouts, steps: int) -> float:
    """Median seconds of batch and update."""
    config = TrainConfig(layout="tree", max_logprob_gap=1e9)
    updater = Updater(Policy.load(model), config)
    taken = []
    for step in range(steps + 1):
        started = time.perf_counter()
        every = [s for group in groups for s in group]
        credit = {(s.rollout_id, int(q)): (-1.0) ** i for i, s in enumerate(every) for q in set(s.calls)}
        updater.run([make_batch(every, credit)], step)
        taken.append(time.perf_counter() - started)
    return sorted(taken[1:])[steps // 2]


def _theirs(model: Path, groups: Rollouts, scratch: Path, steps: int) -> float:
    """Median seconds of a step of GRPOTrainer whose rollouts are there already."""
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    size = len(groups[0])
    taken: list[float] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.started = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            taken.append(time.perf_counter() - self.started)

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(model / "tokenizer.json"), eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = GRPOConfig(
            output_dir=str(scratch / "trl"),
            per_device_train_batch_size=size,
            gradient_accumulation_steps=len(groups),
            num_generations=size,
            max_completion_length=1 << 15,
            max_steps=steps + 1,
            beta=0.0,
            learning_rate=1e-5,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            shuffle_dataset=False,
        )
        trainer = GRPOTrainer(
            model=Policy.load(model).model,
            args=options,
            processing_class=tokenizer,
            reward_funcs=_alternating,
            train_dataset=Dataset.from_dict({"prompt": [str(i) for i in range(len(groups))]}),
            rollout_func=_Recorded(groups),
            callbacks=[Clock()],
        )
        trainer.train()
    torch.set_num_threads(1)
    return sorted(taken[1:])[steps // 2]


class _Recorded:
    """Hands the recorded rollouts to TRL, in its form."""

    __name__ = "recorded"

    def __init__(self, groups: Rollouts) -> None:
        self._groups = groups

    def __call__(self, prompts: Sequence[str], trainer: Any) -> dict[str, list[list[Any]]]:
        used: dict[str, int] = {}
        out: dict[str, list[list[Any]]] = {
            "prompt_ids": [],
            "completion_ids": [],
            "logprobs": [],
            "env_mask": [],
        }
        for prompt in prompts:
            sample = self._groups[int(prompt)][used.setdefault(prompt, 0)]
            used[prompt] += 1
            first = int(sample.loss_mask.argmax())
            out["prompt_ids"].append(sample.ids[:first].tolist())
            out["completion_ids"].append(sample.ids[first:].tolist())
            out["logprobs"].append(sample.logprobs[first:].tolist())
            out["env_mask"].append(sample.loss_mask[first:].astype(int).tolist())
        return out


def _alternating(completions: Sequence[Any], **_: Any) -> list[float]:
    """Rewards that leave no group without a gradient."""
    return [float(i % 2) for i in range(len(completions))]
