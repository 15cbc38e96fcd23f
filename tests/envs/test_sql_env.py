"""palestra/Sql-v0: what an agent sees, what is anchored, and what it cannot break."""

from __future__ import annotations

import json
import pickle
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import palestra.envs  # noqa: F401
from palestra.envs.env import MAX_ERROR_CHARS
from palestra.envs.errors import EnvSetupError, EnvStateError
from palestra.envs.sql import SqlEnv, render, show
from palestra.rewards.score import GraderError, unjudged
from palestra.rewards.sql import ExecutionAccuracy
from palestra.tasks.registry import load_tasks
from palestra.tasks.sql.guarded import Result
from palestra.tasks.task import Budget, Task, TaskSet
from palestra.trajectories.model import Score


def make_task(path: Path | str, **fields: Any) -> Task:
    data = {"database": {"file": str(path)}, "gold_sql": "SELECT COUNT(*) FROM pet WHERE kind = 'dog'"}
    return Task(
        id=fields.pop("id", "pets/1"),
        family="sql",
        env="palestra/Sql-v0",
        split="train",
        instruction="How many dogs are there?",
        data=data | fields.pop("data", {}),
        budget=Budget(turns=fields.pop("turns", 10), command_s=2.0),
    )


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pets") / "pets.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            """
            CREATE TABLE owner (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
            CREATE TABLE pet (id INTEGER PRIMARY KEY, kind TEXT, weight REAL,
                              owner_id INTEGER REFERENCES owner(id));
            CREATE TABLE "odd name" ("the column" BLOB);
            """
        )
        connection.executemany("INSERT INTO owner VALUES (?, ?)", [(i, f"owner {i}") for i in range(30)])
        connection.executemany(
            "INSERT INTO pet VALUES (?, ?, ?, ?)",
            [(i, ("dog", "cat", None)[i % 3], i / 3, i % 30) for i in range(200)],
        )
        connection.execute("INSERT INTO \"odd name\" VALUES (x'00ff')")
        connection.commit()
    return path


@pytest.fixture
def env(pets: Path) -> SqlEnv:
    made = SqlEnv()
    made.reset(seed=0, options={"task": make_task(pets)})
    return made


TINY = TaskSet("tiny", load_tasks("sql-tiny")[:20])


def call(tool: str, **arguments: Any) -> str:
    return json.dumps({"name": tool, "arguments": arguments})


def look(env: SqlEnv, tool: str, **arguments: Any) -> str:
    return env.step(call(tool, **arguments))[0]


# What an agent sees.


def test_the_first_observation_is_the_question(pets: Path) -> None:
    observation, info = SqlEnv().reset(seed=0, options={"task": make_task(pets)})
    assert observation == "How many dogs are there?"
    assert set(info) == {"anchor", "state_digest", "valid_action", "timings"}


def test_an_episode_from_question_to_reward(env: SqlEnv) -> None:
    assert look(env, "list_tables") == '"odd name", owner, pet'
    assert look(env, "describe", table="pet") == (
        "pet(id INTEGER PRIMARY KEY, kind TEXT, weight REAL, owner_id INTEGER -> owner(id))"
    )
    assert look(env, "query", sql="SELECT kind, COUNT(*) AS n FROM pet GROUP BY kind ORDER BY kind") == (
        "kind | n\nNULL | 66\ncat | 67\ndog | 67"
    )
    step = env.step(call("submit", sql="SELECT COUNT(*) FROM pet WHERE kind = 'dog'"))
    assert step[:4] == ("submitted", 1.0, True, False)
    assert env.score().valid and "perturbed" in env.score().evidence


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("SELECT id FROM pet WHERE 0", "(no rows)"),
        ("SELECT x FROM pet", "error: no such column: x"),
        ("DELETE FROM pet", "error: only SELECT on the tables of this database is allowed"),
        ("SELECT random()", "error: the function random is not allowed"),
        ("SELECT 1; SELECT 2", "error: You can only execute one statement at a time."),
        ("", "error: there is no SELECT statement"),
        ("SELECT 0.1 + 0.2, 1e20, 3.0", "0.1 + 0.2 | 1e20 | 3.0\n0.3 | 1e+20 | 3.0"),
        ("SELECT * FROM [odd name]", "the column\n<2 bytes>"),
        ("SELECT 'a\nb' AS t", "t\na\\nb"),
        ("SELECT id FROM pet LIMIT 21", "id\n" + "\n".join(map(str, range(20))) + "\n... 1 more rows"),
    ],
)
def test_query(env: SqlEnv, sql: str, shown: str) -> None:
    assert look(env, "query", sql=sql) == shown


def test_endless_queries_end(env: SqlEnv) -> None:
    sql = "WITH RECURSIVE c AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM c) SELECT SUM(x) FROM c"
    assert look(env, "query", sql=sql) == "error: the query took too long (it may take 2 s)"


def test_describe_forgives_case_and_quotes(env: SqlEnv) -> None:
    assert look(env, "describe", table="OWNER") == "owner(id INTEGER PRIMARY KEY, name TEXT)"
    assert look(env, "describe", table='"odd name"') == '"odd name"("the column" BLOB)'
    assert look(env, "describe", table="dog") == "error: no such table: dog"


def test_samples_of_values_on_request(pets: Path) -> None:
    env = SqlEnv(samples=2)
    env.reset(seed=0, options={"task": make_task(pets)})
    assert look(env, "describe", table="owner").splitlines()[1:] == ["id: 0, 1", "name: owner 0, owner 1"]


def test_results_are_cut_to_size() -> None:
    wide = Result(("a\nb", "c" * 5000), [("x" * 5000, "y")] * 50, complete=True)
    text = render(wide, max_rows=20, max_chars=1000)
    assert len(text) < 3000 and text.startswith("a\\nb | ccc") and text.endswith("more rows")
    assert render(Result(("a",), [(1,)], complete=False), 20, 1000) == "a\n1\n... many more rows"
    assert show("x" * 300) == "x" * 200 + "..."


@pytest.mark.parametrize(
    ("action", "says", "valid"),
    [
        (
            "SELECT 1",
            "error: answer with a tool call; the tools are list_tables, describe, query, submit",
            False,
        ),
        (call("fly"), "error: there is no tool 'fly'; the tools are", False),
        (call("query"), "error: bad arguments for query: sql: field required", False),
        (call("query", sql=3), "error: bad arguments for query: sql: input should be a valid string", False),
        ('{"name": "query", "arguments": []}', "error: a tool call is", False),
        (call("query", sql="SELECT"), "error: incomplete input", True),
    ],
)
def test_malformed_actions_are_answered(env: SqlEnv, action: str, says: str, valid: bool) -> None:
    observation, reward, terminated, truncated, info = env.step(action)
    assert observation.startswith(says) and info["valid_action"] is valid
    assert (reward, terminated, truncated) == (0.0, False, False)


def test_errors_that_quote_the_action_are_cut(env: SqlEnv) -> None:
    for action in (call("x" * 9000), call("describe", table="t" * 9000), call("query", sql="q" * 9000)):
        assert len(env.step(action)[0]) <= MAX_ERROR_CHARS + 3


# Ends.


def test_out_of_turns_is_truncated_and_graded_zero(pets: Path) -> None:
    env = SqlEnv()
    env.reset(seed=0, options={"task": make_task(pets, turns=2)})
    assert env.step(call("list_tables"))[1:4] == (0.0, False, False)
    assert env.step(call("list_tables"))[1:4] == (0.0, False, True)
    assert env.score().evidence == "nothing was submitted"
    with pytest.raises(EnvStateError, match="this episode is over"):
        env.step(call("list_tables"))
    env.reset(seed=0, options={"task": make_task(pets)})
    assert look(env, "list_tables")


def test_submitting_on_the_last_turn_is_terminated_not_truncated(pets: Path) -> None:
    env = SqlEnv()
    env.reset(seed=0, options={"task": make_task(pets, turns=1)})
    assert env.step(call("submit", sql="SELECT 1"))[1:4] == (0.0, True, False)


def test_use_before_reset_is_an_error() -> None:
    with pytest.raises(EnvStateError, match="call reset"):
        SqlEnv().step("x")


def test_without_a_task_there_is_nothing_to_reset_to() -> None:
    with pytest.raises(EnvSetupError, match='options={"task"'):
        SqlEnv().reset(seed=0)


# Failures of ours are never rewards.


def test_a_missing_database_is_a_setup_error_that_names_it(tmp_path: Path) -> None:
    env = SqlEnv()
    with pytest.raises(EnvSetupError, match=r"'pets/1'.*gone\.sqlite"):
        env.reset(seed=0, options={"task": make_task(tmp_path / "gone.sqlite")})
    with pytest.raises(EnvStateError):
        env.step("x")


def test_a_corrupt_database_is_a_setup_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "bad.sqlite"
    path.write_bytes(b"garbage" * 1000)
    with pytest.raises(EnvSetupError, match=r"bad\.sqlite"):
        SqlEnv().reset(seed=0, options={"task": make_task(path)})


def test_a_database_that_vanishes_in_mid_episode_is_an_error_not_an_observation(
    pets: Path, tmp_path: Path
) -> None:
    path = tmp_path / "pets.sqlite"
    path.write_bytes(pets.read_bytes())
    env = SqlEnv()
    env.reset(seed=0, options={"task": make_task(path)})
    path.unlink()
    with pytest.raises(EnvSetupError, match="cannot be opened"):
        look(env, "list_tables")


def test_a_failing_gold_raises_instead_of_rewarding(pets: Path) -> None:
    env = SqlEnv()
    env.reset(seed=0, options={"task": make_task(pets, data={"gold_sql": "SELECT absent FROM pet"})})
    with pytest.raises(GraderError, match="no such column: absent"):
        env.step(call("submit", sql="SELECT 1"))


class Undecided(ExecutionAccuracy):
    """A grader that never measures."""

    def __call__(self, task: Task, submission: Any) -> Score:
        return unjudged(self, "the judge was away")


def test_a_score_that_is_no_measurement_is_not_a_zero(pets: Path) -> None:
    env = SqlEnv(grader=Undecided())
    env.reset(seed=0, options={"task": make_task(pets)})
    with pytest.raises(GraderError, match="the judge was away"):
        env.step(call("submit", sql="SELECT 1"))


# Anchors.


def anchor_after(env: SqlEnv, task: Task, *actions: str) -> str:
    info = env.reset(seed=0, options={"task": task})[1]
    for action in actions:
        info = env.step(action)[4]
    return str(info["anchor"])


def test_the_same_knowledge_is_the_same_anchor_by_any_way(env: SqlEnv) -> None:
    task = env.task
    one = anchor_after(
        env, task, call("list_tables"), call("describe", table="pet"), call("describe", table="owner")
    )
    other = anchor_after(
        env,
        task,
        call("describe", table="owner"),
        "nonsense",
        call("describe", table="pet"),
        call("list_tables"),
    )
    assert one == other
    asked = call("query", sql="SELECT COUNT(*) AS n FROM pet")
    reworded = call("query", sql="SELECT COUNT(id)  AS n FROM pet")
    assert anchor_after(env, task, asked) == anchor_after(env, task, reworded)


def test_different_knowledge_is_a_different_anchor(env: SqlEnv) -> None:
    ways: list[tuple[str, ...]] = [
        (),
        (call("list_tables"),),
        (call("describe", table="pet"),),
        (call("describe", table="owner"),),
        (call("list_tables"), call("describe", table="pet")),
        (call("query", sql="SELECT 1"),),
        (call("query", sql="SELECT 2"),),
        (call("query", sql="SELECT absent"),),
        (call("submit", sql="SELECT 1"),),
    ]
    anchors = [anchor_after(env, env.task, *way) for way in ways]
    assert len(set(anchors)) == len(ways)


# Snapshots, threads, pickles.


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                call("list_tables"),
                call("describe", table="pet"),
                call("query", sql="SELECT COUNT(*) FROM pet"),
                call("query", sql="oops"),
                "text",
                call("submit", sql="SELECT 67"),
            ]
        ),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 6),
)
def test_a_restored_world_continues_as_the_first_did(pets_actions: list[str], cut: int) -> None:
    env = SqlEnv(TINY)
    env.reset(seed=1)
    prefix = [a for a in pets_actions[:cut] if "submit" not in a]
    for action in prefix:
        env.step(action)
    kept = env.snapshot()
    first = _play(env, pets_actions[cut:])
    for other in (env, SqlEnv(TINY)):
        other.restore(kept)
        assert _play(other, pets_actions[cut:]) == first


def _play(env: SqlEnv, actions: list[str]) -> list[Any]:
    steps = []
    for action in actions:
        observation, reward, terminated, truncated, info = env.step(action)
        steps.append((observation, reward, terminated, truncated, info["anchor"], info["state_digest"]))
        if terminated or truncated:
            break
    return steps


def test_an_env_pickles_in_mid_episode(env: SqlEnv) -> None:
    look(env, "query", sql="SELECT 1")
    again = pickle.loads(pickle.dumps(env))
    assert _play(again, [call("list_tables")]) == _play(env, [call("list_tables")])


def test_threads_take_turns(env: SqlEnv) -> None:
    seen: list[str] = []
    for _ in range(3):
        thread = threading.Thread(
            target=lambda: seen.append(look(env, "query", sql="SELECT COUNT(*) AS n FROM pet"))
        )
        thread.start()
        thread.join()
    assert seen == ["n\n200"] * 3


def test_two_environments_share_no_state(pets: Path) -> None:
    first, second = SqlEnv(), SqlEnv()
    task = make_task(pets)
    infos = [e.reset(seed=0, options={"task": task})[1] for e in (first, second)]
    look(first, "list_tables")
    first.step(call("submit", sql="SELECT 1"))
    assert second.step("x")[4]["anchor"] == infos[1]["anchor"]


@settings(max_examples=100, deadline=None)
@given(
    st.text()
    | st.builds(
        lambda n, a: json.dumps({"name": n, "arguments": a}), st.text(), st.dictionaries(st.text(), st.text())
    )
)
def test_any_string_is_a_legal_action(action: str) -> None:
    env = SqlEnv(TINY)
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(action)
    assert env.observation_space.contains(observation) and reward == 0.0 and not truncated and not terminated
    assert env.step(call("list_tables"))[4]["valid_action"]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(["query", "describe", "submit"]), st.text())
def test_any_argument_is_legal(name: str, text: str) -> None:
    env = SqlEnv(TINY)
    env.reset(seed=0)
    observation, reward, *_ = env.step(call(name, **{"table" if name == "describe" else "sql": text}))
    assert isinstance(observation, str) and reward == 0.0


def test_gymnasium_makes_it_by_name_and_by_module() -> None:
    for name in ("palestra/Sql-v0", "palestra.envs:palestra/Sql-v0"):
        env = gymnasium.make(name, tasks="sql-gym", max_rows=3)
        assert isinstance(env.unwrapped, SqlEnv)
        assert env.reset(seed=4)[0] == env.reset(seed=4)[0]
        env.close()
