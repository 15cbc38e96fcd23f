"""What a step, a snapshot and a game cost in the worlds.

    python benchmarks/worlds.py            a table
    python benchmarks/worlds.py --json     one object

`sql_step_p50_ms`: a step of palestra/Sql-v0 on a generated database of a million rows: listing, describing, a look-up
by key, an aggregate over an index, a page of rows. `sql_scan_p50_ms`, beside it: an aggregate over the whole table,
which is SQLite's own work. `snapshot_p50_ms`: snapshot and restore of that world in mid-episode, together.
`textworld_overhead`: CPU time of steps of palestra/TextWorld-v0 over those of the bare library with the same requests,
minus 1; the two take turns. `index_100k_s`, `search_step_p50_ms`, `search_snapshot_p50_ms`: palestra/Search-v0 on
100,000 passages (BM25 in memory); `search_large_*` on a million (tantivy); see search_worlds.py. Another world adds a
function that returns a mapping to `PARTS`.
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from statistics import median
from typing import Any

from measure import Bench, Measurement, measure
from palestra.envs.sql import SqlEnv
from palestra.tasks.sql.database import database_builder
from palestra.tasks.task import Budget, Task
from search_worlds import search

ROWS = 1_000_000
QUICK_ROWS = 50_000


@database_builder
def build(rows: int) -> bytes:
    """Orders of customers, with an index: the SQLite image."""
    rng = random.Random(0)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE customer (id INTEGER PRIMARY KEY, name TEXT, city TEXT)")
        connection.execute(
            "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER REFERENCES customer(id), amount REAL)"
        )
        people = rows // 20
        connection.executemany(
            "INSERT INTO customer VALUES (?, ?, ?)",
            ((i, f"name {i}", f"city {i % 97}") for i in range(people)),
        )
        connection.executemany(
            "INSERT INTO orders VALUES (?, ?, ?)",
            ((i, rng.randrange(people), rng.randrange(10_000) / 100) for i in range(rows - people)),
        )
        connection.execute("CREATE INDEX by_customer ON orders(customer_id)")
        connection.commit()
        return connection.serialize()


def sql(args: Any) -> Mapping[str, object]:
    """Steps and snapshots of the SQL world on a large database."""
    rows = QUICK_ROWS if args.quick else ROWS
    env = SqlEnv()
    env.reset(options={"task": _task(rows)})
    look_up = "SELECT name FROM customer WHERE id = {}"
    total = "SELECT COUNT(*), SUM(amount) FROM orders WHERE customer_id = {}"
    actions = [
        *(_call("list_tables"), _call("describe", table="orders")),
        *(_call("query", sql=text.format(k)) for text in (look_up, total) for k in range(20)),
        *(_call("query", sql=f"SELECT * FROM orders LIMIT 20 OFFSET {k}") for k in range(20)),
    ]
    env.step(actions[0]), env.step(actions[-1])
    steps_s = [_seconds(partial(env.step, a)) for _ in range(args.repeats) for a in actions]
    scan = _call("query", sql="SELECT customer_id % 7, SUM(amount) FROM orders GROUP BY 1")
    scans_s = [_seconds(lambda: env.step(scan)) for _ in range(3)]
    forks_s = [_seconds(lambda: env.restore(env.snapshot())) for _ in range(50 * args.repeats)]
    env.close()
    return {
        "sql_rows": rows,
        "sql_step_p50_ms": 1000 * median(steps_s),
        "sql_step_p99_ms": 1000 * sorted(steps_s)[int(0.99 * len(steps_s))],
        "sql_scan_p50_ms": 1000 * median(scans_s),
        "snapshot_p50_ms": 1000 * median(forks_s),
    }


def textworld(args: Any) -> Mapping[str, object]:
    """Our steps against the bare library's, on one generated game."""
    from palestra.envs.textworld_env import TextWorldEnv, _start, game_file
    from palestra.tasks.registry import load_tasks

    task = load_tasks("textworld?train=1&dev=0&test=0&turns=100000")[0]
    env, bare = TextWorldEnv(), _start(game_file(task))
    env.reset(options={"task": task})
    bare.reset()
    commands = ["look", "inventory", "go north", "go south", "examine coin"] * (4 if args.quick else 20)
    found = measure(
        {
            "textworld": lambda: [bare.step(command) for command in commands],
            "palestra": lambda: [env.step(command) for command in commands],
        },
        repeats=args.repeats,
    )
    env.close()
    bare.close()
    return {
        "textworld_step_ms": 1000 * median(found.timings["palestra"].wall_s) / len(commands),
        "textworld_overhead": _cpu_ratio(found) - 1,
    }


PARTS: dict[str, Callable[[Any], Mapping[str, object]]] = {
    "sql": sql,
    "search": search,
    "textworld": textworld,
}


def main() -> None:
    """Measure and print."""
    bench = Bench("Worlds", example="python benchmarks/worlds.py --quick --json")
    bench.parser.add_argument("--only", choices=PARTS, action="append", help="one part, or several")
    args = bench.parse()
    facts: dict[str, object] = {}
    for name, part in PARTS.items():
        if not args.only or name in args.only:
            facts |= part(args)
    bench.show({}, **facts)


def _task(rows: int) -> Task:
    data = {"database": {"builder": f"{__name__}:build", "args": {"rows": rows}}, "gold_sql": "SELECT 1"}
    budget = Budget(turns=10_000_000)
    return Task(
        id="t", family="sql", env="palestra/Sql-v0", split="test", instruction="?", data=data, budget=budget
    )


def _cpu_ratio(found: Measurement) -> float:
    """Of medians of rounds that took turns. Raises ValueError where the clock saw no CPU time."""
    ratio = found.cpu_ratio("palestra")
    if ratio is None:
        raise ValueError("too little CPU time to compare: take more --repeats")
    return ratio.summary()["median"]


def _call(name: str, **arguments: object) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
