"""BM25 (Robertson and Zaragoza 2009, in Lucene's form) by bm25s, all in memory: English stop words, Snowball stems."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import bm25s
import numpy as np
import Stemmer
from bm25s.stopwords import STOPWORDS_EN
from bm25s.tokenization import Tokenized

from palestra.envs.search.disk import built
from palestra.envs.search.retriever import Hit, best, index_dir, options_of
from palestra.tasks.search.corpus import Passage, Source

_VERSION = 1
"""Change it with anything that changes the index."""
SAVED_FROM = 5_000
"""Passages from which an index is kept on disk; smaller ones are made anew in less time than reading takes."""
_STOP = -1
_words = re.compile(r"\w\w+").findall


class Bm25:
    """See the module."""

    def __init__(self, passages: Sequence[Passage], index: bm25s.BM25) -> None:
        """`passages` are sorted by id, in the order of `index`."""
        self._passages, self._index = passages, index

    def search(self, query: str, k: int) -> list[Hit]:
        """See Retriever. A passage without any word of the query is not found."""
        vocabulary = getattr(self._index, "vocab_dict", {})
        known = [stem for stem in stems(query) if stem in vocabulary]
        if not known:
            return []
        scores = self._index.get_scores(known)
        return best(self._passages, np.asarray(scores, np.float32), k, above=0.0)


def stems(text: str) -> list[str]:
    """The words of a text that count, as they are compared."""
    met = _Stems()
    numbers = met.of(text)
    names = list(met.numbers)
    return [names[number] for number in numbers]


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
    index, met = bm25s.BM25(), _Stems()
    tokens = [met.of(f"{p.title}\n{p.text}") for p in passages]
    if any(tokens):
        index.index(Tokenized(tokens, met.numbers), show_progress=False)
    return index


def _save(passages: Sequence[Passage], folder: Path) -> None:
    _index(passages).save(folder, show_progress=False)


class _Stems(dict[str, int]):
    """The number of the stem of each word that was met; a stop word has none.

    The same tokens as `bm25s.tokenize` with Snowball's stemmer makes, in half the time.
    """

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(STOPWORDS_EN, _STOP))
        self.numbers: dict[str, int] = {}
        self._stemmer = Stemmer.Stemmer("english", 0)  # no cache: each word is stemmed once

    def __missing__(self, word: str) -> int:
        number = self.numbers.setdefault(self._stemmer.stemWord(word), len(self.numbers))
        self[word] = number
        return number

    def of(self, text: str) -> list[int]:
        """The numbers of the stems of a text, in its order."""
        return [number for number in map(self.__getitem__, _words(text.lower())) if number != _STOP]
