"""Grading SQL: right answers in many forms, and one attack per test."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from palestra.rewards.score import GraderError
from palestra.rewards.sql import ExecutionAccuracy
from palestra.tasks.registry import find_task, load_tasks
from palestra.tasks.sql.database import connect, database_bytes
from palestra.tasks.task import Budget, Task

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "sql"
GRADER = ExecutionAccuracy()


def clinic_task(gold: str, **data: Any) -> Task:
    source = {"builder": "palestra.tasks.sql.gym.population:build", "args": {"world": "clinic", "seed": 0}}
    return task_on(source, gold, **data)


def task_on(source: dict[str, Any], gold: str, **data: Any) -> Task:
    return Task(
        id="t",
        family="sql",
        env="palestra/Sql-v0",
        split="train",
        instruction="?",
        data={"database": source, "gold_sql": gold, **data},
        budget=Budget(command_s=2.0),
    )


COUNT = clinic_task("SELECT COUNT(*) FROM visits WHERE reason = 'injury'")
NAMES = clinic_task("SELECT name, salary FROM doctors WHERE specialty = 'neurology'")
TOP = clinic_task("SELECT name FROM doctors ORDER BY salary DESC LIMIT 3")


def value(task: Task, sql: str | None) -> float | None:
    score = GRADER(task, sql)
    assert score.valid and score.evidence and "\n" not in score.evidence
    return score.value


@pytest.mark.parametrize(
    ("task", "sql"),
    [
        (COUNT, COUNT.data["gold_sql"]),
        (COUNT, "SELECT SUM(reason = 'injury') FROM visits;"),
        (COUNT, "SELECT COUNT(*) * 1.0 FROM visits WHERE reason LIKE 'INJURY' -- a comment"),
        (COUNT, "WITH c AS (SELECT * FROM visits WHERE reason = 'injury') SELECT COUNT(*) FROM c"),
        (NAMES, "SELECT salary, name FROM doctors WHERE specialty = 'neurology' ORDER BY 1"),
        (NAMES, "SELECT DISTINCT name AS who, salary FROM doctors WHERE specialty IN ('neurology')"),
        (TOP, "SELECT name FROM (SELECT * FROM doctors) ORDER BY salary DESC LIMIT 3"),
    ],
)
def test_right_answers_in_other_words_score_1(task: Task, sql: str) -> None:
    assert value(task, sql) == 1.0


@pytest.mark.parametrize(
    ("task", "sql", "says"),
    [
        (COUNT, "SELECT COUNT(*) FROM visits", "the values differ"),
        (COUNT, "SELECT reason FROM visits", "more than the 1 rows"),
        (COUNT, "SELECT COUNT(*) FROM visits WHERE reason = 'injury' HAVING 0", "has 0 rows"),
        (NAMES, "SELECT name FROM doctors WHERE specialty = 'neurology'", "1 columns, the gold's has 2"),
        (TOP, "SELECT name FROM doctors ORDER BY salary LIMIT 3", "the values differ"),
        (TOP, f"SELECT name FROM ({TOP.data['gold_sql']}) ORDER BY name", "the values differ"),
        (COUNT, "SELECT COUNT(*) FROM visit", "no such table: visit"),
    ],
)
def test_wrong_answers_score_0_and_say_why(task: Task, sql: str, says: str) -> None:
    score = GRADER(task, sql)
    assert score.value == 0.0 and says in score.evidence


@pytest.mark.parametrize("submission", [None, "", "  \n"])
def test_nothing_submitted_scores_0(submission: str | None) -> None:
    score = GRADER(COUNT, submission)
    assert (score.value, score.evidence) == (0.0, "nothing was submitted")


# Attacks.


def answer(task: Task) -> list[Any]:
    with closing(connect(database_bytes(task))) as connection:
        return connection.execute(task.data["gold_sql"]).fetchall()


def test_attack_constant_answer() -> None:
    score = GRADER(COUNT, f"SELECT {answer(COUNT)[0][0]}")
    assert score.value == 0.0 and "perturbed copy" in score.evidence


def test_attack_constant_rows() -> None:
    rows = ", ".join(f"('{name}', {salary})" for name, salary in answer(NAMES))
    assert value(NAMES, f"VALUES {rows}") == 0.0


def test_attack_constant_picked_by_a_fingerprint_of_the_database() -> None:
    right = answer(COUNT)[0][0]
    sql = f"SELECT CASE WHEN (SELECT COUNT(*) FROM visits) = 1600 THEN {right} ELSE 0 END"
    assert value(COUNT, sql) == 0.0


def test_attack_empty_answer() -> None:
    assert value(NAMES, "SELECT name, salary FROM doctors WHERE 0") == 0.0


def test_attack_everything() -> None:
    assert value(NAMES, "SELECT * FROM doctors WHERE specialty = 'neurology'") == 0.0


def test_attack_all_columns_padded() -> None:
    assert value(COUNT, "SELECT COUNT(*), COUNT(*) FROM visits WHERE reason = 'injury'") == 0.0


def test_attack_attach_writes_a_file(tmp_path: Path) -> None:
    assert value(COUNT, f"ATTACH '{tmp_path / 'evil.db'}' AS evil") == 0.0
    assert value(COUNT, f"VACUUM INTO '{tmp_path / 'evil.db'}'") == 0.0
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("sql", ["PRAGMA query_only = 0", "SELECT * FROM pragma_database_list"])
def test_attack_pragma(sql: str) -> None:
    assert value(COUNT, sql) == 0.0


@pytest.mark.parametrize(
    "sql", ["DELETE FROM visits", "UPDATE visits SET reason = 'injury'", "DROP TABLE visits"]
)
def test_attack_write(sql: str) -> None:
    assert value(COUNT, sql) == 0.0
    assert value(COUNT, COUNT.data["gold_sql"]) == 1.0


def test_attack_infinite_recursion() -> None:
    sql = "WITH RECURSIVE c AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM c) SELECT COUNT(*) FROM c"
    score = GRADER(COUNT, sql)
    assert score.value == 0.0 and "took too long" in score.evidence


def test_attack_cross_join() -> None:
    assert value(COUNT, "SELECT COUNT(*) FROM visits a, visits b, visits c, visits d") == 0.0


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT printf('%0900000000d', 1)",
        "SELECT zeroblob(900000000)",
        "SELECT group_concat(a.reason || b.reason) FROM visits a, visits b",
        "SELECT json_group_array(a.reason) FROM visits a, visits b, visits c",
    ],
)
def test_attack_huge_string(sql: str) -> None:
    assert value(COUNT, sql) == 0.0


def test_reading_the_schema_is_allowed_and_gains_nothing() -> None:
    assert value(COUNT, "SELECT COUNT(*) FROM sqlite_master") == 0.0


def test_attack_statistics_tables_are_not_readable() -> None:
    assert value(COUNT, "SELECT stat FROM sqlite_stat1") == 0.0


@pytest.mark.parametrize("sql", ["SELECT 1; {}", "{}; SELECT 1", "{}; DELETE FROM visits"])
def test_attack_several_statements(sql: str) -> None:
    assert value(COUNT, sql.format(COUNT.data["gold_sql"])) == 0.0


@pytest.mark.parametrize("sql", ["-- {}", "/* {} */", "SELECT 1 -- {}", "/* unfinished {}"])
def test_attack_comments(sql: str) -> None:
    assert value(COUNT, sql.format(COUNT.data["gold_sql"])) == 0.0


@pytest.mark.parametrize(
    "sql", ["SELECT abs(random()) % 400", "SELECT name FROM doctors ORDER BY random() LIMIT 3"]
)
def test_attack_random(sql: str) -> None:
    score = GRADER(TOP, sql)
    assert score.value == 0.0 and "the function random is not allowed" in score.evidence


def test_attack_the_clock() -> None:
    assert value(COUNT, "SELECT strftime('%s', 'now') % 400") == 0.0


@pytest.mark.parametrize("sql", ["\x00", "\ud800", "SELECT '\ud800'", "é", "'" * 3, "(" * 5000])
def test_attack_garbage(sql: str) -> None:
    assert value(COUNT, sql) == 0.0


# The grader's own failures are never a zero.


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (clinic_task("SELECT absent FROM visits"), "the gold SQL fails: no such column: absent"),
        (clinic_task("DELETE FROM visits"), "the gold SQL fails"),
        (clinic_task("SELECT name FROM doctors WHERE salary < 0"), "returns no rows"),
        (
            clinic_task(
                "SELECT reason FROM visits LIMIT 1",
                gold_variants=["SELECT 'checkup'", "SELECT 'injury'"],
            ),
            "ambiguous",
        ),
        (task_on({"file": "nowhere.sqlite"}, "SELECT 1"), "nowhere.sqlite cannot be opened"),
        (task_on({}, "SELECT 1"), "must be"),
    ],
)
@pytest.mark.parametrize("submission", ["SELECT 1", None])
def test_a_failing_gold_is_an_error_not_a_score(task: Task, says: str, submission: str | None) -> None:
    with pytest.raises(GraderError, match=says):
        GRADER(task, submission)


def test_a_task_without_gold_is_an_error() -> None:
    task = clinic_task("SELECT 1")
    bare = task.model_copy(update={"data": {"database": task.data["database"]}})
    with pytest.raises(GraderError, match="no gold_sql"):
        GRADER(bare, "SELECT 1")


def test_a_submission_must_be_text() -> None:
    with pytest.raises(GraderError, match="SQL text, got int"):
        GRADER(COUNT, 3)


# Copies, partial credit, sets.


def test_copies_on_which_the_gold_is_ambiguous_are_not_used() -> None:
    ranked = "SELECT specialty FROM doctors GROUP BY specialty ORDER BY COUNT(*) DESC"
    tied = clinic_task(
        f"{ranked} LIMIT 1",
        gold_variants=[f"{ranked}, specialty {way} LIMIT 1" for way in ("ASC", "DESC")],
    )
    for variant in tied.data["gold_variants"]:
        assert value(tied, variant) == 1.0


def test_a_gold_that_never_changes_still_grades() -> None:
    task = clinic_task("SELECT 42")
    assert value(task, "SELECT 40 + 2") == 1.0
    assert value(task, "SELECT 41") == 0.0


def test_more_copies_can_be_asked_for() -> None:
    score = ExecutionAccuracy(copies=5)(COUNT, COUNT.data["gold_sql"])
    assert score.value == 1.0 and "5 perturbed copies" in score.evidence


def test_partial_credit_is_a_part_and_only_on_request() -> None:
    near = "SELECT name, salary FROM doctors WHERE specialty = 'neurology' ORDER BY salary LIMIT 3"
    rows = len(answer(NAMES))
    partial = ExecutionAccuracy(partial=True)
    score = partial(NAMES, near)
    assert score.value == 0.0 and score.parts["partial"] == pytest.approx(2 * 3 / (rows + 3))
    assert partial(NAMES, NAMES.data["gold_sql"]).parts == {"partial": 1.0}
    assert partial(NAMES, None).parts == partial(NAMES, "nonsense").parts == {"partial": 0.0}
    assert GRADER(NAMES, near).parts == {}


def test_scores_carry_the_name_and_version_of_the_grader() -> None:
    score = GRADER(COUNT, "SELECT 1")
    assert (score.grader, score.grader_version) == (GRADER.name, GRADER.version)


@pytest.mark.parametrize("name", ["sql-gym", "sql-tiny"])
def test_in_the_built_in_packs_gold_wins_and_constants_lose(name: str) -> None:
    for task in load_tasks(name)[::17]:
        assert value(task, task.data["gold_sql"]) == 1.0, task.id
        rows = ", ".join("(" + ", ".join(map(_literal, row)) + ")" for row in answer(task))
        if name == "sql-gym":
            assert value(task, f"VALUES {rows}") == 0.0, task.id
        assert value(task, "SELECT NULL WHERE 0") == 0.0


def _literal(cell: Any) -> str:
    return "'" + cell.replace("'", "''") + "'" if isinstance(cell, str) else repr(cell)


def test_tie_variants_of_the_pack_are_all_accepted() -> None:
    task = find_task("sql-gym", "sql-gym/clinic/top_parent")
    assert task.data["gold_variants"]
    for variant in task.data["gold_variants"]:
        assert value(task, variant) == 1.0


REAL = [
    ("chinook", "SELECT COUNT(*) FROM Track", "SELECT COUNT(TrackId) FROM Track"),
    (
        "chinook",
        "SELECT Name FROM Artist JOIN Album USING (ArtistId) GROUP BY ArtistId HAVING COUNT(*) > 10",
        "SELECT Name FROM Artist a WHERE (SELECT COUNT(*) FROM Album b WHERE b.ArtistId = a.ArtistId) > 10",
    ),
    (
        "chinook",
        "SELECT SUM(Total) FROM Invoice WHERE BillingCountry = 'Canada'",
        "SELECT SUM(Total) FROM Invoice JOIN Customer USING (CustomerId) WHERE BillingCountry = 'Canada'",
    ),
    (
        "chinook",
        "SELECT g.Name, AVG(t.Milliseconds) FROM Genre g JOIN Track t USING (GenreId) GROUP BY g.GenreId",
        "SELECT SUM(t.Milliseconds) * 1.0 / COUNT(*), g.Name FROM Track t, Genre g "
        "WHERE g.GenreId = t.GenreId GROUP BY g.Name",
    ),
    (
        "northwind",
        'SELECT SUM(UnitPrice * Quantity * (1 - Discount)) FROM "Order Details"',
        "SELECT SUM(Quantity * UnitPrice) - SUM(Quantity * UnitPrice * Discount) FROM [Order Details]",
    ),
    (
        "northwind",
        "SELECT CompanyName FROM Customers WHERE Country = 'France'",
        "SELECT CompanyName FROM Customers WHERE lower(Country) = 'france' ORDER BY 1",
    ),
    (
        "northwind",
        "SELECT COUNT(*) FROM Orders WHERE strftime('%Y', OrderDate) = '1997'",
        "SELECT COUNT(*) FROM Orders WHERE OrderDate LIKE '1997-%'",
    ),
]


@pytest.mark.parametrize(("name", "gold", "other"), REAL)
def test_questions_on_real_databases(name: str, gold: str, other: str) -> None:
    path = SHARED / f"{name}.sqlite"
    if not path.exists():
        pytest.skip(f"{path.name} is not in ../shared/data/sql")
    task = task_on({"file": str(path)}, gold)
    assert value(task, gold) == value(task, other) == 1.0
    rows = ", ".join("(" + ", ".join(map(_literal, row)) + ")" for row in answer(task))
    assert value(task, f"VALUES {rows}") == 0.0
    assert value(task, "SELECT 0") == 0.0


def test_a_database_made_by_the_test_behaves_like_the_real_ones(tmp_path: Path) -> None:
    path = tmp_path / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE [Order Details] (id INTEGER PRIMARY KEY, price NUMERIC, note TEXT)")
        rows = [(i, i * 1.5, json.dumps({"n": i})) for i in range(40)]
        connection.executemany("INSERT INTO [Order Details] VALUES (?, ?, ?)", rows)
        connection.commit()
    task = task_on({"file": str(path)}, 'SELECT SUM(price) FROM "Order Details"')
    assert value(task, "SELECT SUM(price) FROM [Order Details]") == 1.0
    assert value(task, f"SELECT {sum(r[1] for r in rows)}") == 0.0
