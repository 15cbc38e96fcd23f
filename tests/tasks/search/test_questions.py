"""Question files of the benchmarks: what becomes of their records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from palestra.envs.validate import validate_task
from palestra.tasks.errors import TaskFileError, TaskParameterError
from palestra.tasks.registry import load_tasks
from search_files import HOTPOT, MUSIQUE, lines


def test_hotpotqa_brings_its_corpus(tmp_path: Path) -> None:
    path = tmp_path / "hotpot.json"
    path.write_text(json.dumps([HOTPOT | {"type": "bridge"}]))
    (task,) = load_tasks(f"hotpotqa?path={path}")
    assert (task.id, task.instruction, task.split) == ("hotpotqa/h1", "Who?", "dev")
    assert task.data["answers"] == ["Ann"] and task.data["evidence"] == ["Ann", "Bo"]
    assert task.data["kind"] == "bridge" and "retriever" not in task.data and "rule" not in task.data
    assert validate_task(task).passed


def test_another_corpus_retriever_and_rule(tmp_path: Path) -> None:
    path = lines(tmp_path / "q.jsonl", HOTPOT)
    corpus = lines(tmp_path / "c.jsonl", {"id": "1", "contents": '"Ann"\nAnn is one.'})
    (task,) = load_tasks(f"2wiki?path={path}&corpus={corpus}&retriever=tantivy&rule=f1")
    assert task.data["corpus"] == {"path": str(corpus)}
    assert task.data["retriever"] == {"kind": "tantivy"} and task.data["rule"] == "f1"


def test_musique_with_aliases_and_without_an_answer(tmp_path: Path) -> None:
    path = lines(tmp_path / "m.jsonl", MUSIQUE, MUSIQUE | {"id": "2hop__2", "answerable": False})
    told, untold = load_tasks(f"musique?path={path}")
    assert told.data["answers"] == ["Ann", "Anna"] and told.data["kind"] == "2-hop"
    assert untold.data["answers"] == [] and untold.data["answerable"] is False
    assert validate_task(told).passed and validate_task(untold).passed


def test_search_r1_questions(tmp_path: Path) -> None:
    path = lines(tmp_path / "nq.jsonl", {"id": "test_0", "question": "who?", "golden_answers": ["Ann", "A."]})
    (task,) = load_tasks(f"search-r1?path={path}&corpus=http://127.0.0.1:1/retrieve&retriever=remote")
    assert task.data["answers"] == ["Ann", "A."]
    assert task.data["retriever"] == {"kind": "remote", "url": "http://127.0.0.1:1/retrieve"}


def test_beir_asks_for_citations(tmp_path: Path) -> None:
    lines(
        tmp_path / "corpus.jsonl", *({"_id": f"d{n}", "title": f"T{n}", "text": f"word{n}"} for n in range(9))
    )
    lines(tmp_path / "queries.jsonl", {"_id": "1", "text": "word3?"}, {"_id": "2", "text": "unjudged"})
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\td3\t1\n1\td4\t0\n")
    (task,) = load_tasks(f"beir?path={tmp_path}")
    assert task.data["evidence"] == ["d3"] and task.data["rule"] == "citations"
    assert validate_task(task).passed


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    bare = lines(tmp_path / "bare.jsonl", {"question": "Who?", "answer": "Ann"})
    with pytest.raises(TaskFileError, match="it has no paragraphs; give corpus"):
        load_tasks(f"hotpotqa?path={bare}")
    with pytest.raises(TaskFileError, match="field 'golden_answers' or 'answer' is missing"):
        load_tasks(f"search-r1?path={lines(tmp_path / 'x.jsonl', {'question': '?'})}&corpus={bare}")
    with pytest.raises(TaskParameterError, match="add retriever=remote"):
        load_tasks(f"search-r1?path={bare}&corpus=http://127.0.0.1:1")
