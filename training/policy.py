"""The policy being trained: a Hugging Face causal language model and the log-probabilities of what it did."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from palestra.harness_proxy.engines.weights import save_weights
from palestra.training.attention import register
from palestra.training.layouts import MicroBatch
from palestra.training.logprobs import chunked_logprobs
from palestra.training.lora import Lora, adapt, adapters, merged, named_by_peft
from palestra.training.sharded import ALONE, Team, meeting, shard, spread, whole

_WEIGHTS, _ADAPTERS = "model.safetensors", "adapters.safetensors"
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)
"""What a model directory has besides config and weights, where its source had it."""


@dataclass(frozen=True, slots=True)
class PolicyOptions:
    """How a model is held and computed while it is trained."""

    device: str = "cpu"
    """Or cuda, cuda:1, ..."""
    bf16: bool = False
    """Compute in bfloat16; weights, gradients and optimizer stay in float32."""
    gradient_checkpointing: bool = False
    """Keep one hidden state per layer and compute the rest again backward: far less memory, a third more time."""
    offload_activations: bool = False
    """Keep what the backward pass needs in main memory until then: less on the accelerator, more traffic."""
    lora: Lora | None = None
    """Train adapters instead of all weights."""


class Policy:
    """A causal LM in training mode.

    The vocabulary is only ever expanded at the positions that carry loss, a few at a time, never for whole sequences.
    """

    def __init__(self, model: nn.Module, options: PolicyOptions = PolicyOptions()) -> None:
        self.model, self.options = model, options
        self.temperature = 1.0
        self.team = ALONE
        self._scorer = _Scorer(model, options)

    @classmethod
    def load(cls, model_dir: str | Path, options: PolicyOptions = PolicyOptions()) -> Policy:
        """From a local directory in Hugging Face layout, or a hub name. Raises OSError when there is none."""
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        model = AutoModelForCausalLM.from_pretrained(
            str(model_dir), dtype=torch.float32, attn_implementation="sdpa"
        )
        model = model.to(options.device).train()
        if options.gradient_checkpointing:
            enable = getattr(
                model, "activation_checkpointing_enable", None
            )  # its name from transformers 5.20 on
            (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
        return cls(adapt(model, options.lora) if options.lora else model, options)

    who = "policy"

    @meeting
    def load_weights(self, model_dir: str | Path) -> None:
        """Take the weights of a checkpoint of the same architecture; with adapters, its adapters alone.

        Raises OSError, and changes nothing then.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            saved = load_file(str(Path(model_dir) / (_ADAPTERS if self.options.lora else _WEIGHTS)))
        except SafetensorError as error:
            raise OSError(f"the weights in {model_dir} cannot be read: {error}") from error
        self._check_fits(saved, model_dir)
        self.load_state(saved)

    def _check_fits(self, saved: Mapping[str, Tensor], model_dir: str | Path) -> None:
        held = adapters(self.model) if self.options.lora else self.state()
        own = {name: value.shape for name, value in held.items()}
        missing = {name for name in own if name not in saved and not name.startswith("lm_head")}
        foreign = {name for name, value in saved.items() if own.get(name) != value.shape}
        if missing or foreign:
            raise OSError(
                f"{model_dir} does not fit this model: missing {sorted(missing)[:3]}, of another name or shape "
                f"{sorted(foreign)[:3]}"
            )

    def save(self, model_dir: str | Path, *, tokenizer: Path) -> None:
        """Write config.json, safetensors and a copy of `tokenizer` (a tokenizer.json): ready to be served.

        The weights come last and in one piece, so a directory that has them is complete.
        """
        target = Path(model_dir)
        target.mkdir(parents=True, exist_ok=True)
        for name in TOKENIZER_FILES:
            if (source := tokenizer.with_name(name)).exists():
                shutil.copy(source, target / name)
        self._hf.config.architectures = [type(self.model).__name__]
        self._hf.config.save_pretrained(str(target))
        if self.options.lora:
            save_weights(adapters(self.model), target / _ADAPTERS)
        save_weights(self.weights(), target / _WEIGHTS)

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the optimizer updates."""
        return (p for p in self.model.parameters() if p.requires_grad)

    @property
    def num_parameters(self) -> int:
        """Parameters, tied ones counted once."""
        return sum(p.numel() for p in self.model.parameters())

    @meeting
    def weights(self) -> dict[str, Tensor]:
        """Name to detached tensor, as the model has them without adapters; shares memory where it can."""
        return merged(self.model) if self.options.lora else self.state()

    @meeting
    def adapters(self) -> dict[str, Tensor]:
        """The adapters alone, by the names that peft saves them under."""
        return whole(named_by_peft(adapters(self.model)))

    @meeting
    def state(self) -> dict[str, Tensor]:
        """Everything that the model computes with, sharing its memory where it is not sharded."""
        return whole({name: value.detach() for name, value in self.model.state_dict().items()})

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take what `state` has, whole, by the names of `state()`."""
        own = self.model.state_dict()
        self.model.load_state_dict({n: spread(t, own[n]) for n, t in state.items()}, strict=False)

    def shard(self, team: Team) -> None:
        """Share the weights out over `team`, before an optimizer is made."""
        self.team = team
        if team.size > 1:
            shard(self.model, self._scorer)

    def logprobs(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """(log-probability of each loss token, entropy in nats at its position), both (N,).

        Computed at `temperature`, as the tokens were sampled.
        """
        self._see(batch.attention)
        out: tuple[Tensor, Tensor] = self._scorer(batch, self.temperature)
        return out

    def _see(self, attention: str) -> None:
        if self._hf.config._attn_implementation != attention:
            register()
            self._hf.set_attn_implementation(attention)

    @property
    def _hf(self) -> Any:
        return self.model


class _Scorer(nn.Module):
    """A model and what is asked of it, as one module: what is sharded is put together around its call."""

    def __init__(self, model: nn.Module, options: PolicyOptions) -> None:
        super().__init__()
        self.model: Any = model
        self._options = options

    def forward(self, batch: MicroBatch, temperature: float) -> tuple[Tensor, Tensor]:
        head = self.model.get_output_embeddings()
        device = torch.device(self._options.device).type
        with torch.autocast(device, torch.bfloat16, self._options.bf16), self._offloaded(device):
            hidden = batch.hidden(self.model.get_decoder())
        return chunked_logprobs(
            hidden,
            head.weight.to(hidden.dtype),
            batch.targets,
            bias=getattr(head, "bias", None),
            temperature=temperature,
            softcap=getattr(self.model.config, "final_logit_softcapping", None),
        )

    def _offloaded(self, device: str) -> AbstractContextManager[Any]:
        if not self._options.offload_activations:
            return nullcontext()
        return torch.autograd.graph.save_on_cpu(pin_memory=device == "cuda")
