"""palestra/Search-v0 by its own contract; what it shares with all environments is in tests/conformance."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from palestra.envs.errors import EnvSetupError
from palestra.envs.search.adaptive import AdaptiveSearchEnv
from palestra.envs.search.env import SearchEnv
from palestra.rewards.search import SearchGrader
from search_world import call, corpus_file, look, search_task


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return corpus_file(tmp_path)


@pytest.fixture
def env(corpus: Path) -> SearchEnv:
    env = SearchEnv()
    env.reset(seed=0, options={"task": search_task(corpus)})
    return env


def test_searching_reading_and_answering(env: SearchEnv) -> None:
    assert look(env, "search", query="where was Ann Lee born").startswith(
        "[ann] Ann Lee\n| Ann Lee wrote The Quiet Sea. She was born in Dorn."
    )
    assert "[dorn] Dorn" in look(env, "search", query="Dorn")
    assert look(env, "find_in_page", id="dorn", text="MAYOR").endswith("The mayor is Bo.")
    assert look(env, "open", id="dorn", page=3).endswith("The mayor is Bo.\n(page 3 of 3)")
    observation, reward, terminated, truncated, _ = env.step(
        call("answer", answer="bo", citations=["[dorn]"])
    )
    assert (observation, reward, terminated, truncated) == ("submitted", 1.0, True, False)
    parts = env.score().parts
    assert (parts["evidence"], parts["citation_precision"], parts["searches"]) == (1.0, 1.0, 2.0)


def test_tags_of_search_r1_do_the_same(env: SearchEnv) -> None:
    observation, *_ = env.step("I have to look. <search> Ann Lee </search> <answer>Bo</answer>")
    assert observation.startswith("[ann]")
    assert env.step("Done. <answer> Bo </answer> <search>x</search>")[1:3] == (1.0, True)


def test_text_without_tags_is_told_what_to_do(env: SearchEnv) -> None:
    for text in ("Bo.", "<answer>Bo", "</answer>Bo<answer>", "<search></search>"):
        observation, _, terminated, _, info = env.step(text)
        assert observation.startswith("error: ") and not terminated, text


def test_what_was_not_found_can_neither_be_opened_nor_cited(env: SearchEnv) -> None:
    for action in (call("open", id="dorn"), call("find_in_page", id="dorn", text="x")):
        assert env.step(action)[0].startswith("error: no passage 'dorn' was found so far")
    observation, _, terminated, *_ = env.step(call("answer", answer="Bo", citations=["dorn"]))
    assert observation.startswith("error: no passage") and not terminated


def test_pages_and_texts_that_are_not_there(env: SearchEnv) -> None:
    look(env, "search", query="Elm river")
    assert look(env, "open", id="elm", page=2) == "error: [elm] has pages 1 to 1, there is no page 2"
    assert look(env, "find_in_page", id="elm", text="lake") == "(not in [elm])"
    assert look(env, "search", query="zzz") == "(no results)"


def test_the_searches_of_a_task_may_be_counted(corpus: Path) -> None:
    env = SearchEnv()
    env.reset(options={"task": search_task(corpus, max_searches=1)})
    before = env.step(call("search", query="zzz"))[4]["anchor"]
    assert look(env, "search", query="Dorn") == "error: no searches are left: answer with what was found"
    env.reset(options={"task": search_task(corpus)})
    assert env.step(call("search", query="zzz"))[4]["anchor"] != before


def test_the_anchor_is_what_was_read_however_it_was_found(env: SearchEnv) -> None:
    def anchors(*queries: str) -> str:
        env.reset(options={"task": env.task})
        return str([env.step(call("search", query=q))[4]["anchor"] for q in queries][-1])

    assert anchors("Elm", "Ann") == anchors("Ann", "Elm") == anchors("Ann", "Ann", "Elm", "zzz")
    assert anchors("Elm") != anchors("Ann")


def test_the_digest_knows_more_than_the_anchor(env: SearchEnv) -> None:
    first = env.step(call("search", query="Ann"))[4]
    second = env.step(call("search", query="Ann"))[4]
    assert first["anchor"] == second["anchor"] and first["state_digest"] != second["state_digest"]


def test_results_tell_the_query_apart(corpus: Path) -> None:
    env = SearchEnv(top_k=1, snippet_chars=40)
    env.reset(options={"task": search_task(corpus)})
    assert look(env, "search", query="who is the mayor of Dorn: mayor") != look(
        env, "search", query="Elm Dorn"
    )


def test_a_snapshot_takes_no_time_and_is_not_touched_by_what_follows(env: SearchEnv) -> None:
    for query in ("Ann", "Elm", "Dorn", "mayor"):
        look(env, "search", query=query)
    started = time.perf_counter()
    kept = env.snapshot()
    env.restore(kept)
    assert time.perf_counter() - started < 1  # it is some microseconds; benchmarks/worlds.py measures it
    score = env.step(call("answer", answer="Bo"))[1]
    env.restore(kept)
    assert look(env, "open", id="elm").startswith("[elm] Elm")
    assert env.step(call("answer", answer="Bo"))[1] == score == 1.0


def test_graders_weights_change_the_value(corpus: Path) -> None:
    env = SearchEnv(grader=SearchGrader(search_price=0.25))
    env.reset(options={"task": search_task(corpus)})
    look(env, "search", query="Dorn")
    assert env.step(call("answer", answer="Bo"))[1] == 0.75


def test_a_missing_corpus_or_retriever_is_a_failure_of_setup(corpus: Path, tmp_path: Path) -> None:
    for task in (
        search_task(tmp_path / "no.jsonl"),
        search_task(corpus, corpus=None),
        search_task(corpus, retriever={"kind": "oracle"}),
        search_task(corpus, retriever={"kind": "bm25", "stem": False}),
        search_task(corpus, retriever={"kind": "dense", "model": str(tmp_path)}),
        search_task(corpus, retriever={"kind": "hybrid"}),
        search_task(corpus, retriever={"kind": "remote", "url": "localhost"}),
    ):
        with pytest.raises(EnvSetupError, match="search/1"):
            SearchEnv().reset(options={"task": task})


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="top_k"):
        SearchEnv(top_k=0)


def test_deciding_comes_first_and_binds(corpus: Path) -> None:
    env = AdaptiveSearchEnv()
    env.reset(options={"task": search_task(corpus, solve_rate=1.0)})
    for action in (call("search", query="Ann"), call("answer", answer="Bo"), "<answer>Bo</answer>"):
        assert env.step(action)[0].startswith("error: decide first")
    assert look(env, "decide", search=False) == "answer from what you know"
    assert look(env, "search", query="Ann") == "error: you decided to answer without searching"
    assert look(env, "decide", search=True) == "error: this was decided already"
    assert env.step(call("answer", answer="Bo"))[1] == 1.0
    assert env.score().parts["decision"] == 1.0
