"""Retrievers made of retrievers: reciprocal rank fusion (Cormack et al. 2009, SIGIR), and the hook for a reranker.

{"kind": "hybrid", "of": [{"kind": "bm25"}, {"kind": "dense", "model": "models/minilm"}]}
{"kind": "hybrid", "of": [{"kind": "bm25"}], "rerank": "mine.rerank:scores", "depth": 50}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from palestra.envs.errors import RetrieverError
from palestra.envs.search.retriever import MAX_K, Hit, Retriever, open_retriever, options_of
from palestra.tasks.registry import import_function
from palestra.tasks.search.corpus import Passage, Source

Reranker = Callable[[str, Sequence[Passage]], Sequence[float]]
"""(query, passages) -> a score for each, higher is better."""
F = TypeVar("F", bound=Reranker)
_RANK_CONSTANT = 60
"""The paper's k: how little the first ranks stand out."""


def reranker(function: F) -> F:
    """Mark a function as one that tasks may name to rerank."""
    function.__palestra_reranker__ = True  # type: ignore[attr-defined]
    return function


class Fused:
    """Sums 1 / (60 + rank) over several retrievers, each asked for `depth` passages."""

    def __init__(self, retrievers: Sequence[Retriever], depth: int = MAX_K) -> None:
        self._retrievers, self._depth = retrievers, depth

    def search(self, query: str, k: int) -> list[Hit]:
        """See Retriever. Ranks count from 1."""
        passages: dict[str, Passage] = {}
        scores: dict[str, float] = {}
        for retriever in self._retrievers:
            for rank, hit in enumerate(retriever.search(query, max(self._depth, k)), start=1):
                passages[hit.passage.id] = hit.passage
                scores[hit.passage.id] = scores.get(hit.passage.id, 0.0) + 1 / (_RANK_CONSTANT + rank)
        return _sorted([Hit(passages[name], score) for name, score in scores.items()])[:k]


class Reranked:
    """Orders the first `depth` passages of a retriever by a function's scores."""

    def __init__(self, inner: Retriever, rerank: Reranker, depth: int = 50) -> None:
        self._inner, self._rerank, self._depth = inner, rerank, depth

    def search(self, query: str, k: int) -> list[Hit]:
        """See Retriever. Raises RetrieverError where the reranker gives another number of scores."""
        passages = [hit.passage for hit in self._inner.search(query, max(self._depth, k))]
        scores = list(self._rerank(query, passages)) if passages else []
        if len(scores) != len(passages):
            raise RetrieverError(f"the reranker gave {len(scores)} scores for {len(passages)} passages")
        return _sorted([Hit(p, float(s)) for p, s in zip(passages, scores, strict=True)])[:k]


def open_hybrid(source: Source, options: Mapping[str, Any]) -> Retriever:
    """The retrievers that `of` lists, fused; then reranked where `rerank` names a function. Raises RetrieverError."""
    chosen = options_of("hybrid", options, {"of": [], "depth": 50, "rerank": None})
    if not chosen["of"]:
        raise RetrieverError("hybrid needs retrievers: {'kind': 'hybrid', 'of': [{'kind': 'bm25'}, ...]}")
    parts = [open_retriever(source, spec) for spec in chosen["of"]]
    fused: Retriever = Fused(parts, chosen["depth"]) if len(parts) > 1 else parts[0]
    if chosen["rerank"] is None:
        return fused
    function = import_function(chosen["rerank"])
    if not getattr(function, "__palestra_reranker__", False):
        raise RetrieverError(f"{chosen['rerank']} may not rerank: mark it with @reranker")
    return Reranked(fused, function, chosen["depth"])


def _sorted(hits: list[Hit]) -> list[Hit]:
    return sorted(hits, key=lambda hit: (-hit.score, hit.passage.id))
