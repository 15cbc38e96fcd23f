"""Corpora: where passages come from.

A task names its corpus as {"path": "corpus.jsonl"}, with "format" where it cannot be told from the file, or as
{"builder": "package.module:function", "args": {...}}, marked @corpus_builder, or as {"url": ...} where only
a server has it. A `Source` is read as a stream, so that a corpus need not fit into memory; its key names its contents,
and indices are kept under that key.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import orjson

from palestra.tasks.errors import CorpusError
from palestra.tasks.registry import import_function
from palestra.tasks.task import Task

_KEPT = 32
_CHUNK_BYTES = 1 << 20


F = TypeVar("F", bound=Callable[..., Any])


def corpus_builder(function: F) -> F:
    """Mark a function as one that tasks may name to make their corpus: () or (**args) -> passages."""
    function.__palestra_corpus__ = True  # type: ignore[attr-defined]
    return function


@dataclass(frozen=True, slots=True)
class Passage:
    """One piece of text that can be found."""

    id: str
    title: str
    text: str


class Source(Protocol):
    """A corpus that can be read again and again, always in the same order."""

    @property
    def key(self) -> str:
        """64 hex digits; equal keys mean equal passages."""
        ...

    def passages(self) -> Iterator[Passage]:
        """All passages; no id occurs twice. Raises CorpusError."""
        ...


@dataclass(frozen=True)
class FileSource:
    """A file or a folder in one of the formats of `formats.py`."""

    path: Path
    format: str

    @cached_property
    def key(self) -> str:
        """A digest of the files' bytes and of the format."""
        digest = hashlib.sha256(self.format.encode())
        for file in self._files():
            digest.update(f"\n{file.relative_to(self.path.parent)}\n".encode("utf-8", "replace"))
            with file.open("rb") as stream:
                while chunk := stream.read(_CHUNK_BYTES):
                    digest.update(chunk)
        return digest.hexdigest()

    def passages(self) -> Iterator[Passage]:
        """See Source."""
        from palestra.tasks.search.formats import read

        return _unique(read(self.path, self.format), str(self.path))

    def _files(self) -> list[Path]:
        if self.path.is_file():
            return [self.path]
        return sorted(file for file in self.path.rglob("*") if file.is_file())


@dataclass(frozen=True)
class BuiltSource:
    """What a function makes; it is called once."""

    builder: str
    args: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """A digest of the passages."""
        digest = hashlib.sha256()
        for passage in self._made:
            digest.update(orjson.dumps([passage.id, passage.title, passage.text]))
        return digest.hexdigest()

    def passages(self) -> Iterator[Passage]:
        """See Source."""
        return iter(self._made)

    @cached_property
    def _made(self) -> tuple[Passage, ...]:
        function = import_function(self.builder)
        if not getattr(function, "__palestra_corpus__", False):
            raise CorpusError(f"{self.builder} may not make a corpus: mark it with @corpus_builder")
        try:
            return tuple(_unique(function(**self.args), self.builder))
        except TypeError as error:
            raise CorpusError(f"{self.builder} with {dict(self.args)}: {error}") from error


@dataclass(frozen=True)
class RemoteSource:
    """A corpus that only a server has; its passages cannot be listed."""

    url: str

    @property
    def key(self) -> str:
        """A digest of the address: what is behind it may change."""
        return hashlib.sha256(self.url.encode()).hexdigest()

    def passages(self) -> Iterator[Passage]:
        """None."""
        return iter(())


def source_of(task: Task) -> Source:
    """The corpus of a task. Raises CorpusError where its data names none."""
    spec = task.data.get("corpus")
    if not isinstance(spec, Mapping):
        raise CorpusError(f"task {task.id!r}: data['corpus'] must be an object, got {spec!r}")
    return open_source(spec)


def open_source(spec: Mapping[str, Any]) -> Source:
    """The source that `spec` names; the latest ones are kept open. Raises CorpusError."""
    name = orjson.dumps(spec, option=orjson.OPT_SORT_KEYS)
    with _lock:
        if name not in _open:
            _open[name] = _source(spec)
            if len(_open) > _KEPT:
                _open.popitem(last=False)
        _open.move_to_end(name)
        return _open[name]


_open: OrderedDict[bytes, Source] = OrderedDict()
_lock = threading.Lock()


def _source(spec: Mapping[str, Any]) -> Source:
    if "builder" in spec:
        return BuiltSource(spec["builder"], spec.get("args", {}))
    if "path" in spec:
        from palestra.tasks.search.formats import format_of

        path = Path(spec["path"])
        if not path.exists():
            raise CorpusError(f"there is no corpus {path}")
        return FileSource(path, spec.get("format") or format_of(path))
    if "url" in spec:
        return RemoteSource(str(spec["url"]))
    raise CorpusError(
        f"a corpus is {{'path': ...}}, {{'builder': ...}} or {{'url': ...}}, got {dict(spec)!r}"
    )


def _unique(passages: Iterable[Passage], where: str) -> Iterator[Passage]:
    seen: set[str] = set()
    for passage in passages:
        if passage.id in seen:
            raise CorpusError(f"{where}: the id {passage.id!r} is used twice; ids must be unique")
        seen.add(passage.id)
        yield passage
