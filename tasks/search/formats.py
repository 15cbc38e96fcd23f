"""How corpora are written in files, by the name of the format.

search-r1   .jsonl of {"id", "contents": "\\"Title\\"\\ntext"}                              PeterGriffinJin/Search-R1
beir        .jsonl of {"_id", "title", "text"}, or a folder with corpus.jsonl            beir-cellar/beir
titled      .json or .jsonl of {"title", "text"} without ids                             OSU-NLP-Group/HippoRAG
contexts    question files that bring their paragraphs: HotpotQA, 2Wiki ("context") and MuSiQue ("paragraphs")
documents   a folder of text files, cut into passages of some 150 words at paragraphs
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from palestra.tasks.errors import CorpusError, TaskFileError
from palestra.tasks.files import read_records
from palestra.tasks.search.corpus import Passage

PASSAGE_WORDS = 150
TEXT_SUFFIXES = frozenset({".txt", ".md", ".rst"})


def read(path: Path, format: str) -> Iterator[Passage]:
    """The passages of a file or folder. Raises CorpusError naming the file, the place and the field."""
    if format not in READERS:
        raise CorpusError(f"there is no corpus format {format!r}; the formats are {', '.join(READERS)}")
    try:
        yield from READERS[format](path)
    except TaskFileError as error:
        raise CorpusError(str(error)) from error


def format_of(path: Path) -> str:
    """The format of a file or folder by its first record. Raises CorpusError where it cannot be told."""
    if path.is_dir():
        return "beir" if (path / "corpus.jsonl").is_file() else "documents"
    first = next(iter(_records(path)), ("", None))[1]
    fields = set(first) if isinstance(first, Mapping) else set()
    for name, needed in _SIGNS:
        if needed <= fields:
            return name
    known = "; ".join(f"{name} has {', '.join(sorted(needed))}" for name, needed in _SIGNS)
    raise CorpusError(f"{path}: cannot tell its format from the fields {sorted(fields)}: {known}")


def paragraphs(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(title, text) of each paragraph that a HotpotQA, 2Wiki or MuSiQue question brings along."""
    if "paragraphs" in record:
        return [(str(p["title"]), str(p["paragraph_text"])) for p in record["paragraphs"]]
    context = record["context"]
    if isinstance(context, Mapping):  # as the Hub's copies spell it: two lists side by side
        context = zip(context["title"], context["sentences"], strict=True)
    return [(str(title), _joined(sentences)) for title, sentences in context]


def _joined(sentences: Iterable[str]) -> str:
    return " ".join(s.strip() for s in sentences)


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    """(where, value) of each record; .jsonl is read line by line, since corpora can be large."""
    if path.suffix == ".json":
        yield from read_records(path)
        return
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield f"line {number}", orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise CorpusError(f"{path}, line {number}: not JSON: {error}") from error
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {error}") from error


def _fields(path: Path, *names: str) -> Iterator[tuple[str, ...]]:
    for where, record in _records(path):
        try:
            values = tuple(record[name] for name in names)
        except (KeyError, TypeError):
            raise CorpusError(f"{path}, {where}: a passage has the fields {', '.join(names)}") from None
        yield tuple(str(v) for v in values)


def _search_r1(path: Path) -> Iterator[Passage]:
    for identity, contents in _fields(path, "id", "contents"):
        yield passage_of_contents(identity, contents)


def passage_of_contents(identity: str, contents: str) -> Passage:
    """Search-R1's spelling: the title in quotes on the first line, then the text."""
    title, _, text = contents.partition("\n")
    return Passage(identity, title.strip().strip('"'), text.strip())


def contents_of_passage(passage: Passage) -> str:
    """The inverse of `passage_of_contents`."""
    return f'"{passage.title}"\n{passage.text}'


def _beir(path: Path) -> Iterator[Passage]:
    file = path / "corpus.jsonl" if path.is_dir() else path
    for identity, title, text in _fields(file, "_id", "title", "text"):
        yield Passage(identity, title, text)


def _titled(path: Path) -> Iterator[Passage]:
    return _named((title, text) for title, text in _fields(path, "title", "text"))


def _contexts(path: Path) -> Iterator[Passage]:
    def pairs() -> Iterator[tuple[str, str]]:
        for where, record in _records(path):
            try:
                yield from paragraphs(record)
            except (KeyError, TypeError, ValueError) as error:
                raise CorpusError(f"{path}, {where}: no paragraphs: {error!r}") from error

    return _named(pairs())


def _named(pairs: Iterable[tuple[str, str]]) -> Iterator[Passage]:
    """Each text once, by its title; further texts of a title are "title #2", "title #3"."""
    texts: dict[str, list[str]] = {}
    for title, text in pairs:
        known = texts.setdefault(title, [])
        if text not in known:
            known.append(text)
            yield Passage(title if len(known) == 1 else f"{title} #{len(known)}", title, text)


def _documents(path: Path) -> Iterator[Passage]:
    files = sorted(f for f in path.rglob("*") if f.suffix in TEXT_SUFFIXES and f.is_file())
    if not files:
        raise CorpusError(f"{path}: no file ends in {', '.join(sorted(TEXT_SUFFIXES))}")
    for file in files:
        name = file.relative_to(path).as_posix()
        for number, text in enumerate(_pieces(file.read_text(encoding="utf-8", errors="replace")), start=1):
            yield Passage(f"{name}#{number}", name, text)


def _pieces(text: str) -> Iterator[str]:
    """Paragraphs put together up to PASSAGE_WORDS words; a longer paragraph is cut."""
    held: list[str] = []
    count = 0
    for paragraph in text.replace("\r\n", "\n").split("\n\n"):
        words = paragraph.split()
        for start in range(0, len(words), PASSAGE_WORDS):
            part = words[start : start + PASSAGE_WORDS]
            if held and count + len(part) > PASSAGE_WORDS:
                yield "\n\n".join(held)
                held, count = [], 0
            held.append(" ".join(part))
            count += len(part)
    if held:
        yield "\n\n".join(held)


READERS: Mapping[str, Callable[[Path], Iterator[Passage]]] = {
    "search-r1": _search_r1,
    "beir": _beir,
    "titled": _titled,
    "contexts": _contexts,
    "documents": _documents,
}
_SIGNS: tuple[tuple[str, frozenset[str]], ...] = (
    ("search-r1", frozenset({"id", "contents"})),
    ("beir", frozenset({"_id", "title", "text"})),
    ("contexts", frozenset({"context", "question"})),
    ("contexts", frozenset({"paragraphs", "question"})),
    ("titled", frozenset({"title", "text"})),
)
