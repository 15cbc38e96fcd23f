"""The policy being trained: a Hugging Face causal language model and the log-probabilities of what it did."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from palestra.harness_proxy.engines.weights import save_weights
from palestra.training.attention import register
from palestra.training.layouts import MicroBatch
from palestra.training.logprobs import chunked_logprobs


class Policy:
    """A causal LM in training mode, float32 unless told otherwise.

    The vocabulary is only ever expanded at the positions that carry loss, never for whole sequences.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.temperature = 1.0
        """Entropies carry gradients: for an entropy bonus."""

    @classmethod
    def load(
        cls, model_dir: str | Path, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
    ) -> Policy:
        """From a local directory in Hugging Face layout, or a hub name. Raises OSError when there is none."""
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        model = AutoModelForCausalLM.from_pretrained(str(model_dir), dtype=dtype, attn_implementation="sdpa")
        return cls(model.to(device).train())

    def load_weights(self, model_dir: str | Path) -> None:
        """Take the weights of a checkpoint of the same architecture. Raises OSError, and changes nothing then."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            saved = load_file(str(Path(model_dir) / "model.safetensors"))
        except SafetensorError as error:
            raise OSError(f"the weights in {model_dir} cannot be read: {error}") from error
        self._check_fits(saved, model_dir)
        self.model.load_state_dict(saved, strict=False)

    def _check_fits(self, saved: Mapping[str, Tensor], model_dir: str | Path) -> None:
        own = {name: value.shape for name, value in self.model.state_dict().items()}
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
        shutil.copy(tokenizer, target / "tokenizer.json")
        self._hf.config.save_pretrained(str(target))
        save_weights(self.weights(), target / "model.safetensors")

    def parameters(self) -> Iterator[nn.Parameter]:
        """What the optimizer updates."""
        return self.model.parameters()

    @property
    def num_parameters(self) -> int:
        """Parameters, tied ones counted once."""
        return sum(p.numel() for p in self.model.parameters())

    def weights(self) -> dict[str, Tensor]:
        """Name to detached tensor, sharing memory with the model."""
        return {name: value.detach() for name, value in self.model.state_dict().items()}

    def logprobs(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """(log-probability of each loss token, entropy in nats at its position), both (N,).

        Computed at `temperature`, as the tokens were sampled.
        """
        self._see(batch.attention)
        head = self._hf.get_output_embeddings()
        return chunked_logprobs(
            batch.hidden(self._hf.get_decoder()),
            head.weight,
            batch.targets,
            bias=getattr(head, "bias", None),
            temperature=self.temperature,
            softcap=getattr(self._hf.config, "final_logit_softcapping", None),
        )

    def _see(self, attention: str) -> None:
        if self._hf.config._attn_implementation != attention:
            register()
            self._hf.set_attn_implementation(attention)

    @property
    def _hf(self) -> Any:
        return self.model
