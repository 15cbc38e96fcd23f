"""Corpora in files: every format, what is wrong with them, and the names of their contents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from palestra.tasks.errors import CorpusError
from palestra.tasks.search.corpus import FileSource, Passage, open_source
from palestra.tasks.search.formats import contents_of_passage, format_of, passage_of_contents
from search_files import HOTPOT, MUSIQUE, lines


def passages(path: Path) -> list[Passage]:
    return list(open_source({"path": str(path)}).passages())


def test_search_r1(tmp_path: Path) -> None:
    path = lines(tmp_path / "c.jsonl", {"id": "7", "contents": '"Ann Lee"\nShe wrote.\nA lot.'})
    assert passages(path) == [Passage("7", "Ann Lee", "She wrote.\nA lot.")]


def test_contents_go_both_ways() -> None:
    passage = Passage("7", "Ann Lee", "She wrote.")
    assert passage_of_contents("7", contents_of_passage(passage)) == passage


def test_beir_in_a_file_and_in_a_folder(tmp_path: Path) -> None:
    lines(tmp_path / "corpus.jsonl", {"_id": "d1", "title": "T", "text": "x", "metadata": {}})
    assert passages(tmp_path) == passages(tmp_path / "corpus.jsonl") == [Passage("d1", "T", "x")]


def test_titles_without_ids_name_passages_and_repeats_are_left_out(tmp_path: Path) -> None:
    body = [{"title": "T", "text": text} for text in ("x", "y", "x")]
    (tmp_path / "c.json").write_text(json.dumps(body))
    assert [p.id for p in passages(tmp_path / "c.json")] == ["T", "T #2"]


def test_questions_that_bring_their_paragraphs(tmp_path: Path) -> None:
    (tmp_path / "hotpot.json").write_text(json.dumps([HOTPOT, HOTPOT]))
    assert passages(tmp_path / "hotpot.json") == [
        Passage("Ann", "Ann", "Ann is one. She wrote."),
        Passage("Bo", "Bo", "Bo is two."),
    ]
    found = passages(lines(tmp_path / "musique.jsonl", MUSIQUE))
    assert [(p.id, p.title, p.text) for p in found] == [
        ("Ann", "Ann", "Ann is one."),
        ("Ann #2", "Ann", "Another Ann."),
    ]


def test_context_as_two_lists(tmp_path: Path) -> None:
    record = HOTPOT | {"context": {"title": ["Ann"], "sentences": [["One.", "Two."]]}}
    assert passages(lines(tmp_path / "h.jsonl", record)) == [Passage("Ann", "Ann", "One. Two.")]


def test_a_folder_of_documents_is_cut_at_paragraphs(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.md").write_text("\n\n".join(["word " * 100] * 3))
    (tmp_path / "b.txt").write_text("w " * 400)
    (tmp_path / "image.png").write_bytes(b"\x89")
    found = passages(tmp_path)
    assert [p.id for p in found] == [
        *(f"b.txt#{n}" for n in (1, 2, 3)),
        *(f"sub/a.md#{n}" for n in (1, 2, 3)),
    ]
    assert {len(p.text.split()) for p in found} == {150, 100} and found[0].title == "b.txt"


def test_equal_contents_have_equal_keys(tmp_path: Path) -> None:
    first = lines(tmp_path / "c.jsonl", {"id": "1", "contents": "T\nx"})
    before = FileSource(first, "search-r1").key
    assert FileSource(first, "search-r1").key == before and FileSource(first, "beir").key != before
    lines(first, {"id": "1", "contents": "T\ny"})
    assert FileSource(first, "search-r1").key != before


def test_a_builder_is_a_source() -> None:
    spec: dict[str, Any] = {"builder": "palestra.tasks.search.hops.world:corpus", "args": {"seed": 1}}
    source = open_source(spec)
    assert open_source(spec) is source and len(list(source.passages())) == len(list(source.passages())) > 100
    assert source.key != open_source(spec | {"args": {"seed": 2}}).key


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (['{"id": "1", "contents": "T"}', '{"id": "1", "contents": "T"}'], "'1' is used twice"),
        (['{"id": "1", "contents": "T"}', '{"id": "2"}'], "line 2: a passage has the fields id, contents"),
        (['{"id": "1", "contents": "T"}', "{"], "line 2: not JSON"),
        (['{"name": "1"}'], "cannot tell its format"),
        ([], "cannot tell its format"),
        (['["question"]'], "cannot tell its format"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, records: list[str], message: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_text("\n".join(records))
    with pytest.raises(CorpusError, match=message):
        passages(path)


def test_what_is_not_there(tmp_path: Path) -> None:
    for spec in ({"path": str(tmp_path / "no.jsonl")}, {}, {"path": str(tmp_path)}):
        with pytest.raises(CorpusError):
            list(open_source(spec).passages())
    with pytest.raises(CorpusError, match="os:listdir may not make a corpus"):
        list(open_source({"builder": "os:listdir", "args": {"path": "/"}}).passages())
    with pytest.raises(CorpusError, match="unexpected keyword argument 'world'"):
        odd: dict[str, Any] = {"builder": "palestra.tasks.search.hops.world:corpus", "args": {"world": 1}}
        list(open_source(odd).passages())
    with pytest.raises(CorpusError, match="there is no corpus format 'xml'"):
        list(FileSource(tmp_path, "xml").passages())
    (tmp_path / "q.jsonl").write_text('{"question": "?", "context": [1]}')
    with pytest.raises(CorpusError, match="line 1: no paragraphs"):
        passages(tmp_path / "q.jsonl")
    assert format_of(tmp_path) == "documents"
