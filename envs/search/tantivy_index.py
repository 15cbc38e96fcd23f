"""BM25 by tantivy, a search engine in Rust: an index on disk that grows by additions, for large corpora."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson
import tantivy

from palestra.envs.search.disk import built
from palestra.envs.search.retriever import Hit, index_dir, options_of
from palestra.tasks.search.corpus import Passage, Source

_VERSION = 1
_WRITER_BYTES = 256 << 20
_TIES = 16


class TantivyIndex:
    """An index in a folder, made if it is empty. One process may add at a time; all may search."""

    def __init__(self, folder: Path) -> None:
        analyzer = _analyzer()
        self._schema = _schema()
        self._index = tantivy.Index(self._schema, path=str(folder))
        self._index.register_tokenizer("palestra", analyzer)
        self._analyzer = analyzer

    def add(self, passages: Iterable[Passage]) -> None:
        """Index passages; one with an id that is there already takes the other's place."""
        fresh = len(self) == 0
        # One thread: the order of documents, and so of what is equal, does not depend on the machine.
        writer = self._index.writer(_WRITER_BYTES, num_threads=1)
        for passage in passages:
            if not fresh:
                writer.delete_documents_by_term("id", passage.id)
            record = orjson.dumps([passage.id, passage.title, passage.text])
            document = tantivy.Document(id=passage.id, body=f"{passage.title}\n{passage.text}")
            document.add_bytes("record", record)
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()
        self._index.reload()

    def __len__(self) -> int:
        return int(self._index.searcher().num_docs)

    def search(self, query: str, k: int) -> list[Hit]:
        """See Retriever. Words are all that counts in a query: it has no operators."""
        words = sorted(set(self._analyzer.analyze(query)))
        if not words or k < 1:
            return []
        terms = [
            (tantivy.Occur.Should, tantivy.Query.term_query(self._schema, "body", word, "freq"))
            for word in words
        ]
        searcher = self._index.searcher()
        hits = self._with_ties(searcher, tantivy.Query.boolean_query(terms), k)
        found = [Hit(_passage(searcher.doc(address)), float(score)) for score, address in hits]
        return sorted(found, key=lambda hit: (-hit.score, hit.passage.id))[:k]

    def _with_ties(self, searcher: Any, query: Any, k: int) -> list[tuple[float, Any]]:
        """The `k` best, and all others that score as the last of them."""
        for limit in (k + _TIES * 8**step for step in itertools.count()):
            hits = list(searcher.search(query, limit).hits)
            if len(hits) < limit or hits[-1][0] < hits[k - 1][0]:
                return [hit for hit in hits if len(hits) <= k or hit[0] >= hits[k - 1][0]]
        raise AssertionError("count() has no end")


def open_tantivy(source: Source, options: Mapping[str, Any]) -> TantivyIndex:
    """The index of a corpus, read as a stream where it is not on disk yet."""
    options_of("tantivy", options, {})
    folder = index_dir(f"tantivy-{_VERSION}", source.key)
    return TantivyIndex(built(folder, lambda made: TantivyIndex(made).add(source.passages())))


def _passage(document: Any) -> Passage:
    return Passage(*orjson.loads(bytes(document.get_first("record"))))


def _schema() -> Any:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("id", stored=False, tokenizer_name="raw", index_option="basic")
    builder.add_text_field("body", stored=False, tokenizer_name="palestra", index_option="freq")
    builder.add_bytes_field("record", stored=True, indexed=False)
    return builder.build()


def _analyzer() -> Any:
    filters = (
        tantivy.Filter.lowercase(),
        tantivy.Filter.stopword("english"),
        tantivy.Filter.stemmer("english"),
    )
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    for each in (tantivy.Filter.remove_long(40), *filters):
        builder = builder.filter(each)
    return builder.build()
