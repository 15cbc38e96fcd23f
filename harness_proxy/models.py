"""Where a model is: in a directory on this machine, or on the Hugging Face hub, from which it is fetched once."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from palestra.harness_proxy.errors import ModelNotFoundError

FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
"""What is fetched: config, tokenizer and weights; no weights in other formats."""
_HUB_NAME = re.compile(r"\w[\w.-]*/[\w.-]+")


def model_dir(model: str | Path, download: Callable[..., str] | None = None) -> Path:
    """The directory of `model`: itself, or a snapshot of the hub where it is a name such as "Qwen/Qwen3-0.6B".

    download: `huggingface_hub.snapshot_download`, or something like it. Raises ModelNotFoundError.
    """
    name = str(model)
    if Path(model).is_dir():
        return Path(model)
    if not _HUB_NAME.fullmatch(name):
        raise ModelNotFoundError(name)
    try:
        return Path((download or _hub())(name, allow_patterns=list(FILES)))
    except (OSError, ValueError) as error:  # what the hub's own errors are, too
        raise ModelNotFoundError(name, error) from error


def _hub() -> Callable[..., str]:
    from huggingface_hub import snapshot_download

    return snapshot_download
