"""Passages near a query in meaning: a local sentence transformer (Reimers and Gurevych 2019) and an exact scan.

The cosine of every passage is computed, so results are exact. Embeddings are kept on disk under the
keys of corpus and model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from palestra.envs.errors import RetrieverError
from palestra.envs.search.disk import built
from palestra.envs.search.retriever import Hit, best, index_dir, options_of
from palestra.tasks.search.corpus import Passage, Source

Encoder = Callable[[Sequence[str]], npt.NDArray[np.float32]]
"""Texts -> (texts, dimensions), rows of length 1."""
_FILE = "embeddings.npy"


class Dense:
    """See the module."""

    def __init__(
        self, passages: Sequence[Passage], embeddings: npt.NDArray[np.float32], encode: Encoder
    ) -> None:
        """`embeddings`: (passages, dimensions), rows of length 1; `passages` are sorted by id."""
        self._passages, self._embeddings, self._encode = passages, embeddings, encode

    def search(self, query: str, k: int) -> list[Hit]:
        """See Retriever. The score is the cosine."""
        if not query.strip() or not self._passages:
            return []
        return best(self._passages, self._embeddings @ self._encode([query])[0], k, above=-2.0)


def open_dense(source: Source, options: Mapping[str, Any]) -> Dense:
    """The embeddings of a corpus by the model in the folder `model`. Raises RetrieverError."""
    chosen = options_of("dense", options, {"model": None, "query_prefix": "", "passage_prefix": ""})
    folder = Path(str(chosen["model"]))
    if chosen["model"] is None or not (folder / "modules.json").is_file():
        raise RetrieverError(
            f"dense needs the folder of a sentence transformer in 'model', got {chosen['model']!r}"
        )
    encode = _encoder(folder)
    passages = sorted(source.passages(), key=attrgetter("id"))
    texts = [f"{chosen['passage_prefix']}{p.title}\n{p.text}" for p in passages]
    key = hashlib.sha256(f"{source.key} {_model_key(folder)} {chosen['passage_prefix']}".encode()).hexdigest()
    made = built(index_dir("dense", key), lambda new: np.save(new / _FILE, encode(texts)))
    prefix = str(chosen["query_prefix"])
    return Dense(passages, np.load(made / _FILE), lambda queries: encode([prefix + q for q in queries]))


def _encoder(folder: Path) -> Encoder:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)

    def encode(texts: Sequence[str]) -> npt.NDArray[np.float32]:
        made = model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)
        return np.asarray(made, np.float32)

    return encode


def _model_key(folder: Path) -> str:
    """A digest of the weights' names, sizes and first bytes, and of the small files."""
    digest = hashlib.sha256()
    for file in sorted(f for f in folder.rglob("*") if f.is_file()):
        with file.open("rb") as stream:
            head = stream.read(1 << 20)
        digest.update(f"{file.relative_to(folder)} {file.stat().st_size}\n".encode() + head)
    return digest.hexdigest()
