"""Retrievers: what finds passages for a query. A task chooses with data["retriever"], {"kind": "bm25"} by default.

    bm25      in memory, for up to a few hundred thousand passages                          bm25.py
    tantivy   on disk, grows by additions, for millions                                     tantivy_index.py
    dense     by the meaning that a local sentence transformer sees                         dense.py
    hybrid    several of them, their ranks fused                                            fusion.py
    remote    a server that speaks Search-R1's /retrieve                                    remote.py

Equal queries get equal results: ties are broken by passage id, indices are kept on disk under the corpus's key, and
the results of the latest queries in memory. `register_retriever` adds a kind, for example a simulated search engine
(simulated.py).
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import orjson

from palestra.envs.errors import RetrieverError
from palestra.tasks.registry import import_function
from palestra.tasks.search.corpus import Passage, Source
from palestra.tasks.sql.cache import ByteCache

MAX_K = 100
DEFAULT: Mapping[str, Any] = {"kind": "bm25"}
_KEPT_RETRIEVERS = 32
_KEPT_RESULTS_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Hit:
    """A passage that was found, and how well it fits (higher is better, the scale is the retriever's)."""

    passage: Passage
    score: float


class Retriever(Protocol):
    """Finds passages. Safe between threads."""

    def search(self, query: str, k: int) -> Sequence[Hit]:
        """At most `k` passages, best first; none where nothing fits. Raises RetrieverError."""
        ...


Factory = Callable[[Source, Mapping[str, Any]], Retriever]
"""(corpus, options of the task) -> retriever."""

_FACTORIES: dict[str, Factory | str] = {
    "bm25": "palestra.envs.search.bm25:open_bm25",
    "tantivy": "palestra.envs.search.tantivy_index:open_tantivy",
    "dense": "palestra.envs.search.dense:open_dense",
    "hybrid": "palestra.envs.search.fusion:open_hybrid",
    "remote": "palestra.envs.search.remote:open_remote",
}
_REMEMBERED = frozenset(_FACTORIES)
"""Kinds whose results are kept in memory; what others register answers each query itself."""


def register_retriever(kind: str, factory: Factory | str) -> None:
    """Make tasks with {"kind": kind} use `factory`, a function or "module:function". The last registration counts."""
    with _lock:
        _FACTORIES[kind] = factory
        for key in [key for key in _open if orjson.loads(key)[1].get("kind") == kind]:
            del _open[key]


def open_retriever(source: Source, spec: Mapping[str, Any]) -> Retriever:
    """The retriever for a corpus; the latest ones are kept open. Raises RetrieverError, CorpusError."""
    key = orjson.dumps([source.key, spec], option=orjson.OPT_SORT_KEYS)
    if (found := _opened(key)) is not None:
        return found
    with _making:
        if (found := _opened(key)) is not None:
            return found
        made = _make(source, spec)
        found = Remembering(made) if spec["kind"] in _REMEMBERED else made
        with _lock:
            _open[key] = found
            if len(_open) > _KEPT_RETRIEVERS:
                _open.popitem(last=False)
    return found


_open: OrderedDict[bytes, Retriever] = OrderedDict()
_lock = threading.Lock()
_making = threading.RLock()
"""Held while a retriever is made, so that an index is built once; hybrids open others inside."""


def _opened(key: bytes) -> Retriever | None:
    with _lock:
        if key in _open:
            _open.move_to_end(key)
        return _open.get(key)


def _make(source: Source, spec: Mapping[str, Any]) -> Retriever:
    kind = spec.get("kind")
    if kind not in _FACTORIES:
        raise RetrieverError(f"there is no retriever {kind!r}; the kinds are {', '.join(_FACTORIES)}")
    factory = _FACTORIES[kind]
    options = {name: value for name, value in spec.items() if name != "kind"}
    make: Factory = import_function(factory) if isinstance(factory, str) else factory
    try:
        return make(source, options)
    except ImportError as error:
        extra = "dense" if kind == "dense" else "search"
        raise RetrieverError(f"{kind} needs {error.name}: pip install 'palestra[{extra}]'") from error


class Remembering:
    """A retriever that keeps the results of the latest queries."""

    def __init__(self, inner: Retriever) -> None:
        self._inner = inner
        self._results = ByteCache[Sequence[Hit]](_KEPT_RESULTS_BYTES, _size_bytes)

    def search(self, query: str, k: int) -> Sequence[Hit]:
        """See Retriever."""
        return self._results.get((query, k), lambda: tuple(self._inner.search(query, k)))


def _size_bytes(hits: Sequence[Hit]) -> int:
    return 200 + sum(len(hit.passage.text) for hit in hits)


def best(passages: Sequence[Passage], scores: npt.NDArray[np.float32], k: int, above: float) -> list[Hit]:
    """The `k` best passages with a score over `above`; `passages` are sorted by id, and ties follow that order."""
    k = min(k, len(passages))
    if k == 0:
        return []
    least = max(float(np.partition(scores, -k)[-k]), above)
    candidates = np.flatnonzero(scores >= least)
    order = candidates[np.argsort(-scores[candidates], kind="stable")][:k]
    return [Hit(passages[i], float(scores[i])) for i in order.tolist() if scores[i] > above]


def options_of(kind: str, options: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """`options` over the defaults in `known`. Raises RetrieverError for one that is not there."""
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise RetrieverError(
            f"{kind} has no option {', '.join(unknown)}; it has {', '.join(known) or 'none'}"
        )
    return {**known, **options}


def index_dir(kind: str, key: str) -> Path:
    """Where an index is kept: $PALESTRA_CACHE or ~/.cache/palestra, by kind and key."""
    root = Path(os.environ.get("PALESTRA_CACHE") or Path.home() / ".cache" / "palestra")
    return root / "search" / f"{kind}-{key[:32]}"
