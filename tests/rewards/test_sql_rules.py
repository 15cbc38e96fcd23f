"""Where the rules of benchmarks agree with what a question asks, and where they do not.

Each case: gold SQL, submitted SQL, and who calls them equal: S (strict: ours, with perturbed copies), B (BIRD), P
(Spider's test suites), 2 (Spider 2.0). The database is small enough to check by eye. B, P and 2 are what the scripts
say themselves (set comparison of BIRD, eval_exec_match of exec_eval.py, compare_pandas_table of evaluate.py), but for
one case, which says so.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from palestra.rewards.score import GraderError
from palestra.rewards.sql_partial import column_match, composite, exploration, paverl
from palestra.rewards.sql_rules import bird_equal, grader_named, spider2_equal, spider_equal, without_distinct
from palestra.tasks.task import Budget, Task

RULES = {"S": "strict", "B": "bird", "P": "spider", "2": "spider2"}

ALL = "SELECT name, city FROM shop"
CITIES = "SELECT city FROM shop"
KINDS = "SELECT DISTINCT city FROM shop"
TOP = "SELECT name FROM shop ORDER BY sales DESC LIMIT 3"
SORTED = "SELECT name FROM shop ORDER BY sales"
COUNT = "SELECT COUNT(*) FROM shop WHERE city = 'Bern'"
MEAN = "SELECT AVG(sales) FROM shop WHERE city = 'Bern'"
PAIR = "SELECT name, sales FROM shop WHERE city = 'Bern'"
NONE = "SELECT name FROM shop WHERE city = 'Oslo'"
PERCITY = "SELECT city, COUNT(*) FROM shop GROUP BY city"
JOIN = "SELECT s.name, o.name FROM shop s JOIN owner o ON s.owner_id = o.id"
NULLS = "SELECT phone FROM shop"

CASES: list[tuple[str, str, str, str]] = [
    # The same question in other words: everybody agrees.
    ("the gold itself", ALL, ALL, "SBP2"),
    ("an alias", ALL, "SELECT name AS n, city AS c FROM shop AS s", "SBP2"),
    ("a trailing semicolon", ALL, ALL + ";", "SBP2"),
    ("a comment", ALL, ALL + " -- all of them", "SBP2"),
    ("a subquery", ALL, f"SELECT * FROM ({ALL})", "SBP2"),
    ("a common table expression", COUNT, f"WITH c AS ({COUNT}) SELECT * FROM c", "SBP2"),
    ("SUM of a condition for COUNT", COUNT, "SELECT SUM(city = 'Bern') FROM shop", "SBP2"),
    ("an integer as a float", COUNT, "SELECT COUNT(*) * 1.0 FROM shop WHERE city = 'Bern'", "SBP2"),
    ("IN for =", COUNT, "SELECT COUNT(*) FROM shop WHERE city IN ('Bern')", "SBP2"),
    ("GROUP BY for DISTINCT", KINDS, "SELECT city FROM shop GROUP BY city", "SB2"),  # P strips DISTINCT from the gold
    ("JOIN with WHERE", JOIN, "SELECT s.name, o.name FROM shop s, owner o WHERE s.owner_id = o.id", "SBP2"),
    ("the average by hand", MEAN, "SELECT SUM(sales) * 1.0 / COUNT(*) FROM shop WHERE city = 'Bern'", "SBP2"),
    ("any order where none is asked", ALL, ALL + " ORDER BY name", "SBP2"),
    ("ORDER BY the other way round, written twice", SORTED, "SELECT name FROM shop ORDER BY sales ASC", "SBP2"),
    ("an order that a column number names", SORTED, "SELECT name FROM shop ORDER BY shop.sales", "SBP2"),
    ("counting a key for counting rows", COUNT, "SELECT COUNT(id) FROM shop WHERE city = 'Bern'", "SBP2"),
    # Repeated rows: BIRD's sets cannot see them.
    ("a dropped DISTINCT", KINDS, CITIES, "BP"),
    ("an added DISTINCT", CITIES, KINDS, "BP"),
    ("rows twice", ALL, f"{ALL} UNION ALL {ALL}", "B"),
    ("a join that multiplies rows", CITIES, "SELECT s.city FROM shop s, owner", "B"),
    ("UNION for UNION ALL", f"{CITIES} UNION ALL {CITIES}", f"{CITIES} UNION {CITIES}", "B"),
    ("DISTINCT inside COUNT", "SELECT COUNT(DISTINCT city) FROM shop", "SELECT COUNT(city) FROM shop", "P"),
    ("DISTINCT in a subquery", f"SELECT COUNT(*) FROM ({KINDS})", f"SELECT COUNT(*) FROM ({CITIES})", "P"),
    ("LIMIT after DISTINCT", f"{KINDS} ORDER BY city LIMIT 2", f"{CITIES} ORDER BY city LIMIT 2", "P"),
    # Order: BIRD ignores it, and Spider 2.0 by default.
    ("a reversed order", SORTED, SORTED + " DESC", "B2"),
    ("no order where one is asked", SORTED, "SELECT name FROM shop ORDER BY name", "B2"),
    ("the top in another order", TOP, f"SELECT name FROM ({TOP}) ORDER BY name", "B2"),
    ("the bottom for the top", TOP, TOP.replace("DESC", "ASC"), ""),
    ("two for three", TOP, TOP.replace("3", "2"), ""),
    ("four for three", TOP, TOP.replace("3", "4"), ""),
    (
        "an order within the gold's subquery alone",
        "SELECT COUNT(*) FROM (SELECT name FROM shop ORDER BY sales LIMIT 4)", "SELECT MIN(4, COUNT(*)) FROM shop",
        "SBP2",
    ),
    (
        "an ORDER BY in a subquery orders the whole for Spider",
        "SELECT name FROM shop WHERE sales > (SELECT sales FROM shop ORDER BY sales LIMIT 1)",
        "SELECT name FROM shop WHERE sales > (SELECT MIN(sales) FROM shop) ORDER BY name DESC", "SB2",
    ),
    # Columns.
    ("columns swapped", ALL, "SELECT city, name FROM shop", "SP2"),
    ("columns swapped in numbers and text", PERCITY, "SELECT COUNT(*), city FROM shop GROUP BY city", "SP2"),
    ("an extra column", ALL, "SELECT name, city, sales FROM shop", "2"),
    ("everything", PAIR, "SELECT * FROM shop WHERE city = 'Bern'", "2"),
    ("an extra constant", COUNT, "SELECT COUNT(*), 7 FROM shop WHERE city = 'Bern'", "2"),
    ("a missing column", ALL, "SELECT name FROM shop", ""),
    ("a column twice for two", PAIR, "SELECT name, name FROM shop WHERE city = 'Bern'", ""),
    ("one column for the same one twice", "SELECT name, name FROM shop", "SELECT name FROM shop", "2"),
    ("a wrong column", PAIR, "SELECT name, id FROM shop WHERE city = 'Bern'", ""),
    ("two columns as one text", PAIR, "SELECT name || sales FROM shop WHERE city = 'Bern'", ""),
    (
        "columns that are each right but do not go together",
        "SELECT name, sales FROM shop ORDER BY id",
        "SELECT a.name, b.sales FROM shop a JOIN shop b ON b.id = 9 - a.id ORDER BY a.id", "2",
    ),
    # Constants and luck: only perturbed copies see through them.
    ("a constant", COUNT, "SELECT 3", "BP2"),
    ("constants as rows", PAIR, "VALUES ('Alpe', 10), ('Bach', 20), ('Halde', 80)", "BP2"),
    # On a database this small two copies do not see through everything.
    ("a condition that happens to hold", COUNT, "SELECT COUNT(*) FROM shop WHERE id IN (1, 2, 8)", "SBP2"),
    ("a coincidence of counts", COUNT, "SELECT COUNT(*) FROM owner", "BP2"),
    ("the largest key for the count", "SELECT COUNT(*) FROM shop", "SELECT MAX(id) FROM shop", "BP2"),
    ("MAX for the sum of one", "SELECT SUM(sales) FROM shop WHERE city = 'Genf'",
     "SELECT MAX(sales) FROM shop WHERE city = 'Genf'", "SBP2"),
    # Numbers.
    ("floats that differ in the last digit", "SELECT 0.1 + 0.2 + MIN(sales) FROM shop",
     "SELECT MIN(sales) + 0.3 FROM shop", "SBP2"),
    ("rounded to two places", MEAN, "SELECT ROUND(AVG(sales), 2) FROM shop WHERE city = 'Bern'", "2"),
    ("cut to a whole number", MEAN, "SELECT CAST(AVG(sales) AS INTEGER) FROM shop WHERE city = 'Bern'", ""),
    ("a number as text", COUNT, "SELECT CAST(COUNT(*) AS TEXT) FROM shop WHERE city = 'Bern'", ""),
    ("a percentage for a fraction", "SELECT AVG(city = 'Bern') FROM shop",
     "SELECT 100 * AVG(city = 'Bern') FROM shop", ""),
    ("off by a thousandth", "SELECT MAX(sales) FROM shop", "SELECT MAX(sales) + 0.001 FROM shop", "2"),
    # NULL, and text.
    ("NULL as empty text", NULLS, "SELECT COALESCE(phone, '') FROM shop", ""),
    ("NULL left out", NULLS, "SELECT phone FROM shop WHERE phone IS NOT NULL", ""),
    ("NULL as the word", NULLS, "SELECT COALESCE(phone, 'NULL') FROM shop", ""),
    ("another case of letters", CITIES, "SELECT UPPER(city) FROM shop", ""),
    ("a space more", CITIES, "SELECT city || ' ' FROM shop", ""),
    # Empty results: a task whose gold is empty cannot be measured strictly (S is an error there).
    ("empty for empty", NONE, "SELECT name FROM shop WHERE 0", "BP2"),
    ("an empty answer of another shape", NONE, "SELECT name, city FROM shop WHERE 0", "BP2"),
    ("something for empty", NONE, "SELECT name FROM shop", ""),
    ("empty for something", CITIES, NONE, ""),
    # What does not run.
    ("no such column", ALL, "SELECT title FROM shop", ""),
    ("not SQL", ALL, "all of the shops", ""),
    # BIRD's script runs both in one connection: it empties the table, then finds the gold as empty as this.
    ("a change instead of an answer", ALL, "DELETE FROM shop", ""),
]  # fmt: skip


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shops") / "shops.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            """
            CREATE TABLE owner (id INTEGER PRIMARY KEY, name TEXT);
            CREATE TABLE shop (id INTEGER PRIMARY KEY, name TEXT, city TEXT, sales REAL, phone TEXT,
                               owner_id INTEGER REFERENCES owner(id));
            INSERT INTO owner VALUES (1, 'Ann'), (2, 'Bo'), (3, 'Cy');
            INSERT INTO shop VALUES
              (1, 'Alpe', 'Bern', 10, NULL, 1), (2, 'Bach', 'Bern', 20, '12', 2), (3, 'Chalet', 'Chur', 40.5, '13', 3),
              (4, 'Dach', 'Chur', 30, NULL, 1), (5, 'Egg', 'Genf', 50, '14', 2), (6, 'Feld', 'Zug', 60, '15', 2),
              (7, 'Gasse', 'Zug', 70, '16', 3), (8, 'Halde', 'Bern', 80, '17', 1);
            """
        )
        connection.commit()
    return path


def task_of(path: Path, gold: str, rule: str = "strict") -> Task:
    data = {"database": {"file": str(path)}, "gold_sql": gold, "rule": rule}
    budget = Budget(command_s=2.0)
    return Task(
        id="t", family="sql", env="palestra/Sql-v0", split="dev", instruction="?", data=data, budget=budget
    )


def test_there_are_sixty_cases_of_different_names() -> None:
    assert len(CASES) >= 60 and len({name for name, *_ in CASES}) == len(CASES)


@pytest.mark.parametrize(("name", "gold", "submitted", "equal"), CASES, ids=[c[0] for c in CASES])
def test_who_calls_them_equal(shops: Path, name: str, gold: str, submitted: str, equal: str) -> None:
    found = ""
    for letter, rule in RULES.items():
        if letter == "S" and gold == NONE:
            with pytest.raises(GraderError, match="returns no rows"):
                grader_named(rule)(task_of(shops, gold), submitted)
            continue
        score = grader_named(rule)(task_of(shops, gold), submitted)
        assert score.valid and score.evidence
        found += letter if score.value == 1.0 else ""
    assert found == equal


def test_an_unknown_rule_is_refused(shops: Path) -> None:
    with pytest.raises(GraderError, match="no rule 'wikisql'; the rules are strict, bird, spider, spider2"):
        grader_named("wikisql")


def test_distinct_in_quotes_stays() -> None:
    assert (
        without_distinct("SELECT DISTINCT 'distinct' FROM \"distinct\"")
        == "SELECT  'distinct' FROM \"distinct\""
    )


def test_spider_2_may_ask_for_some_columns_and_for_order() -> None:
    gold, got = [("a", 1), ("b", 2)], [("b",), ("a",)]
    assert spider2_equal(gold, got, columns=[0]) and not spider2_equal(gold, got)
    assert not spider2_equal(gold, got, ignore_order=False, columns=[0])


def test_rules_on_bare_rows() -> None:
    assert bird_equal([(1,), (1,)], [(1,)]) and not spider_equal([(1,), (1,)], [(1,)], ordered=False)
    assert spider_equal([(1, 2), (3, 4)], [(2, 1), (4, 3)], ordered=True)
    assert not spider_equal([(1, 2), (3, 4)], [(4, 3), (2, 1)], ordered=True)


@pytest.mark.parametrize(
    ("gold", "got", "credit"),
    [
        ([("a", 1)], [("a", 1)], 1.0),
        ([("a", 1)], [(1, "a")], 1.0),
        ([("a", 1)], [("a", 2)], 0.5),
        ([("a", 1)], [("a", 1, 7, 8)], 0.5),
        ([("a", 1)], [("a",)], 0.5),
        ([("a",), ("b",)], [("b",), ("a",)], 1.0),
        ([("a",)], [], 0.0),
        ([("a", "a")], [("a", "b")], 0.5),
    ],
)
def test_credit_for_columns(
    gold: list[tuple[object, ...]], got: list[tuple[object, ...]], credit: float
) -> None:
    assert column_match(gold, got) == credit  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("got", "reward"),
    [
        (None, 0.0),
        ([], 0.05),
        ([("c", 3), ("d", 4)], 0.05),
        ([("b", 2), ("a", 1)], 1.0),
        ([(1, "a", 7), (2, "b", 8)], 1.0),
        ([("a", 9), ("b", 9)], 0.5),
        ([("a", 1)], 0.05),
    ],
)
def test_the_reward_of_paverl(got: list[tuple[object, ...]] | None, reward: float) -> None:
    assert paverl([("a", 1), ("b", 2)], got) == reward  # type: ignore[arg-type]


def test_exploring_pays_up_to_a_bound_and_failing_costs() -> None:
    assert [exploration([True] * n) for n in (0, 1, 3, 9)] == [0.0, 1 / 3, 1.0, 1.0]
    assert exploration([True, True, False]) == 1 / 3 and exploration([False] * 4) == 0.0


def test_a_right_answer_beats_every_wrong_one() -> None:
    assert composite(1.0, 1.0, 0.0, True) > 0.9 > 0.2 + 1e-9 > composite(0.0, 1.0, 1.0, True)
    assert composite(1.0, 1.0, 1.0, valid_form=False) == 0.0
