"""BM25 (Robertson and Zaragoza 2009, in Lucene's form) by bm25s, all in memory: English stop words, Snowball stems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import Stemmer

from palestra.envs.search.disk import built
from palestra.envs.search.retriever import Hit, best, index_dir, options_of
from palestra.tasks.search.corpus import Passage, Source

_VERSION = 1
"""Change it with anything that changes the index."""
SAVED_FROM = 5_000
"""Passages from which an index is kept on disk; smaller ones are made anew in less time than reading takes."""


class Bm25:
    """See the module."""

    def __init__(self, passages: Sequence[Passage], index: bm25s.BM25) -> None:
        """`passages` are sorted by id, in the order of `index`."""
        self._passages, self._index = passages, index

    def search(self, query: str, k: int) -> list[Hit]:
        """See Retriever. A passage without any word of the query is not found."""
        vocabulary = getattr(self._index, "vocab_dict", {})
        known = [word for word in _words([query])[0] if word in vocabulary]
        if not known:
            return []
        scores = self._index.get_scores(known)
        return best(self._passages, np.asarray(scores, np.float32), k, above=0.0)


def open_bm25(source: Source, options: Mapping[str, Any]) -> Bm25:
    """The index of a corpus; from disk where it is large and there already."""
    options_of("bm25", options, {})
    passages = sorted(source.passages(), key=attrgetter("id"))
    if len(passages) < SAVED_FROM:
        return Bm25(passages, _index(passages))
    folder = index_dir(f"bm25-{bm25s.__version__}-{_VERSION}", source.key)
    built(folder, lambda made: _save(passages, made))
    return Bm25(passages, bm25s.BM25.load(folder, show_progress=False))


def _index(passages: Sequence[Passage]) -> bm25s.BM25:
    """The index; one that was told nothing where no passage has a word."""
    index = bm25s.BM25()
    tokens = _tokens([f"{p.title}\n{p.text}" for p in passages], return_ids=True)
    if any(tokens.ids):
        index.index(tokens, show_progress=False)
    return index


def _save(passages: Sequence[Passage], folder: Path) -> None:
    _index(passages).save(folder, show_progress=False)


def _words(texts: list[str]) -> list[list[str]]:
    return list(_tokens(texts, return_ids=False))


def _tokens(texts: list[str], return_ids: bool) -> Any:
    stem = Stemmer.Stemmer("english")
    return bm25s.tokenize(texts, stopwords="en", stemmer=stem, return_ids=return_ids, show_progress=False)
