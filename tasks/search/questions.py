"""Question files of the multi-hop and retrieval benchmarks, to be searched for in a corpus of the user's.

    load_tasks("hotpotqa?path=hotpot_dev_distractor_v1.json")                    its own paragraphs are the corpus
    load_tasks("hotpotqa?path=hotpot_dev_fullwiki_v1.json&corpus=wiki-18.jsonl&retriever=tantivy")
    load_tasks("2wiki?path=dev.json&corpus=2wikimultihopqa_corpus.json")
    load_tasks("musique?path=musique_full_v1.0_dev.jsonl")
    load_tasks("search-r1?path=nq_test.jsonl&corpus=http://127.0.0.1:8000/retrieve&retriever=remote")
    load_tasks("beir?path=scifact&qrels=test")

`corpus` is a file or folder in one of the formats of `formats.py`; with retriever=remote it is the address of a server.
`rule` is em (the default), f1 or contains (rewards/qa.py). The benchmarks are not part of this project.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from palestra.tasks.errors import TaskFileError, TaskParameterError
from palestra.tasks.files import read_records, read_text
from palestra.tasks.task import Budget, Split, Task, TaskSet

_BUDGET = Budget(turns=12, tokens=32_768, wall_s=600, command_s=30.0)
_Gold = Mapping[str, Any]


def load_hotpotqa(
    path: str, corpus: str = "", split: Split = "dev", retriever: str = "bm25", rule: str = "em"
) -> TaskSet:
    """HotpotQA (Yang et al. 2018: question, answer, supporting_facts, context). Raises TaskFileError."""
    return _load("hotpotqa", path, corpus, split, retriever, rule, _hotpot)


def load_2wiki(
    path: str, corpus: str = "", split: Split = "dev", retriever: str = "bm25", rule: str = "em"
) -> TaskSet:
    """2WikiMultihopQA (Ho et al. 2020), laid out like HotpotQA, perhaps with answer_aliases. Raises TaskFileError."""
    return _load("2wiki", path, corpus, split, retriever, rule, _hotpot)


def load_musique(
    path: str, corpus: str = "", split: Split = "dev", retriever: str = "bm25", rule: str = "em"
) -> TaskSet:
    """MuSiQue (Trivedi et al. 2022: question, answer, answer_aliases, answerable, paragraphs). Raises TaskFileError."""
    return _load("musique", path, corpus, split, retriever, rule, _musique)


def load_search_r1(
    path: str, corpus: str, split: Split = "test", retriever: str = "bm25", rule: str = "em"
) -> TaskSet:
    """Questions as Search-R1 and FlashRAG keep them: .jsonl of id, question, golden_answers. Raises TaskFileError."""
    return _load("search-r1", path, corpus, split, retriever, rule, _golden)


def load_beir(
    path: str, corpus: str = "", qrels: str = "test", split: Split = "test", retriever: str = "bm25"
) -> TaskSet:
    """A BEIR folder (Thakur et al. 2021: corpus.jsonl, queries.jsonl, qrels/<qrels>.tsv): cite what is relevant.

    `corpus` where it lies elsewhere; `qrels` is a split of the folder or a .tsv file. Raises TaskFileError.
    """
    root = Path(path)
    judged = _qrels(Path(qrels) if qrels.endswith(".tsv") else root / "qrels" / f"{qrels}.tsv")
    where = _where(corpus or path, retriever)
    tasks = []
    for place, record in read_records(root / "queries.jsonl"):
        identity = str(_one(record, ("_id", "query_id"), f"{root}/queries.jsonl, {place}"))
        if relevant := judged.get(identity):
            question = f"Find the passages that settle this, and cite them: {record['text']}"
            gold = {"rule": "citations", "evidence": relevant, "kind": "retrieval"}
            tasks.append(_task("beir", identity, split, question, where | gold))
    return TaskSet("beir", tasks)


def _load(
    name: str,
    path: str,
    corpus: str,
    split: Split,
    retriever: str,
    rule: str,
    gold: Callable[[Mapping[str, Any], str], _Gold],
) -> TaskSet:
    where = _where(corpus or path, retriever) | ({"rule": rule} if rule != "em" else {})
    tasks = []
    for index, (place, record) in enumerate(read_records(Path(path))):
        place = f"{path}, {place}"
        if not isinstance(record, dict):
            raise TaskFileError(f"{place}: a question is an object, this is a {type(record).__name__}")
        if not corpus and not {"context", "paragraphs"} & record.keys():
            raise TaskFileError(f"{place}: it has no paragraphs; give corpus=...")
        identity = str(record.get("_id", record.get("id", index)))
        question = str(_one(record, ("question",), place))
        tasks.append(_task(name, identity, split, question, {**where, **gold(record, place)}))
    return TaskSet(name, tasks)


def _where(corpus: str, retriever: str) -> dict[str, Any]:
    """The corpus and retriever of a task's data. Raises TaskParameterError for an address that is searched here."""
    if retriever == "remote":
        return {"corpus": {"url": corpus}, "retriever": {"kind": "remote", "url": corpus}}
    if "://" in corpus:
        raise TaskParameterError(f"{corpus} is a server: add retriever=remote")
    found: dict[str, Any] = {"corpus": {"path": corpus}}
    return found | ({"retriever": {"kind": retriever}} if retriever != "bm25" else {})


def _hotpot(record: Mapping[str, Any], place: str) -> _Gold:
    facts = record.get("supporting_facts", ())
    titles = facts["title"] if isinstance(facts, Mapping) else [title for title, *_ in facts]
    answers = [str(_one(record, ("answer",), place)), *map(str, record.get("answer_aliases", ()))]
    return {"answers": answers, "evidence": _once(titles), "kind": str(record.get("type", "question"))}


def _musique(record: Mapping[str, Any], place: str) -> _Gold:
    titles = [p["title"] for p in record.get("paragraphs", ()) if p.get("is_supporting")]
    answers = [str(_one(record, ("answer",), place)), *map(str, record.get("answer_aliases", ()))]
    hops = len(record.get("question_decomposition", ())) or "question"
    if record.get("answerable", True):
        return {"answers": answers, "evidence": _once(titles), "kind": f"{hops}-hop"}
    return {"answers": [], "answerable": False, "evidence": _once(titles), "kind": "unanswerable"}


def _golden(record: Mapping[str, Any], place: str) -> _Gold:
    golds = _one(record, ("golden_answers", "answer"), place)
    answers = [golds] if isinstance(golds, str) else list(map(str, golds))
    return {"answers": answers, "kind": str(record.get("data_source", "question"))}


def _task(name: str, identity: str, split: Split, question: str, data: Mapping[str, Any]) -> Task:
    return Task(
        id=f"{name}/{identity}",
        family="search",
        env="palestra/Search-v0",
        split=split,
        instruction=question,
        data=dict(data),
        budget=_BUDGET,
    )


def _qrels(path: Path) -> dict[str, list[str]]:
    """The ids of the relevant passages by query. Raises TaskFileError."""
    rows: Iterator[list[str]] = csv.reader(read_text(path).splitlines(), delimiter="\t")
    found: dict[str, list[str]] = {}
    for number, row in enumerate(rows, start=1):
        if len(row) != 3:
            raise TaskFileError(f"{path}, line {number}: a judgement is query, passage and grade, got {row}")
        query, passage, grade = row
        if number > 1 and int(grade) > 0:  # the first line names the columns
            found.setdefault(query, []).append(passage)
    return found


def _once(titles: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(map(str, titles)))


def _one(record: Mapping[str, Any], names: tuple[str, ...], place: str) -> Any:
    """The first of the fields `names` that is there. Raises TaskFileError."""
    for name in names:
        if record.get(name) is not None:
            return record[name]
    there = ", ".join(record) or "nothing"
    raise TaskFileError(f"{place}: field {' or '.join(map(repr, names))} is missing; there is {there}")
