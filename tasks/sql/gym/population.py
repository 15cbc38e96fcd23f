"""Filling a world with rows. Equal names and seeds give equal bytes."""

from __future__ import annotations

import datetime as dt
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache
from itertools import product
from typing import Any

from palestra.tasks.sql.gym.world import Entity, Field, World, load_worlds
from palestra.tasks.sql.schema import create_sql, quoted

_FIRST = """
    Ada Bruno Clara Dario Elin Farid Greta Hugo Ines Jonas Kaya Leon Mira Nils Olga Pavel Quinn Rosa Stefan
    Tara Ugo Vera Wim Xenia Yann Zoe Amira Boris Celia Dmitri
"""
_LAST = """
    Abbott Becker Castillo Dubois Ekberg Fontaine Gruber Haddad Ivanov Jensen Keller Lindgren Moreau Novak
    Okafor Petrov Quist Rossi Schmidt Tanaka Ueda Vargas Weber Yilmaz Zhang
"""
_ADJECTIVES = """
    Silent Golden Broken Hidden Crimson Distant Early Frozen Gentle Hollow Iron Lost Narrow Open Pale Quiet
    Restless Second Tall Winter Amber Blue Copper Dry Endless
"""
_NOUNS = """
    River Garden Window Letter Harbor Mountain Mirror Forest Lantern Bridge Island Shadow Compass Orchard
    Signal Tower Voyage Willow Anchor Canvas Desert Ember Feather Glacier Horizon
"""
_PLACES = """
    Alder Birch Cedar Dover Elm Fair Green Hazel Ivy Juniper Kings Lake Maple North Oak Pine Queens Rose Stone
    Thorn Upper Vale West York
"""
_ENDINGS = "brook dale field ford gate ham mere port stead wick"


def build(world: str, seed: int) -> bytes:
    """The SQLite image of one world."""
    found = {w.name: w for w in load_worlds()}[world]
    rng = random.Random(f"{world}/{seed}")
    with closing(sqlite3.connect(":memory:")) as connection:
        for entity in found.entities:
            connection.execute(create_sql(found.schema(entity)))
            rows = _rows(found, entity, rng)
            slots = ", ".join("?" * len(rows[0]))
            connection.executemany(f"INSERT INTO {quoted(entity.table)} VALUES ({slots})", rows)
            _index_parents(connection, found, entity)
        connection.commit()
        return connection.serialize()


def _index_parents(connection: sqlite3.Connection, world: World, entity: Entity) -> None:
    for parent in entity.parents:
        key = world.foreign_key(parent)
        connection.execute(f"CREATE INDEX {entity.table}_{key} ON {quoted(entity.table)} ({quoted(key)})")


def _rows(world: World, entity: Entity, rng: random.Random) -> list[list[Any]]:
    columns: list[list[Any]] = [list(range(1, entity.rows + 1))]
    if entity.label:
        columns.append(rng.sample(_names(entity.label), entity.rows))
    for parent in entity.parents:
        columns.append(_parent_keys(world.entity(parent).rows, entity.rows, rng))
    for field in entity.fields:
        fill = _filler(field, rng)
        columns.append([None if rng.random() < field.null else fill() for _ in range(entity.rows)])
    return [list(row) for row in zip(*columns, strict=True)]


def _parent_keys(parents: int, rows: int, rng: random.Random) -> list[int]:
    """Keys drawn unevenly, with about a tenth of the parents left without children."""
    chosen = rng.sample(range(1, parents + 1), max(2, parents * 9 // 10))
    weights = [rng.uniform(0.3, 1.7) for _ in chosen]
    return rng.choices(chosen, weights, k=rows)


def _filler(field: Field, rng: random.Random) -> Callable[[], Any]:
    if field.role == "category":
        weights = [rng.uniform(0.5, 1.5) for _ in field.values]
        return lambda: rng.choices(field.values, weights)[0]
    if field.role == "date":
        first = dt.date(int(field.low), 1, 1).toordinal()
        last = dt.date(int(field.high), 12, 31).toordinal()
        return lambda: dt.date.fromordinal(rng.randint(first, last)).isoformat()
    if field.decimals:
        return lambda: round(rng.uniform(field.low, field.high), field.decimals)
    return lambda: rng.randint(int(field.low), int(field.high))


@cache
def _names(kind: str) -> list[str]:
    """All names of a kind; each world samples its own."""
    if kind == "plate":
        return [f"{letters} {n}" for letters, n in product(("KX", "BM", "TR", "ZA"), range(100, 999, 7))]
    if kind == "place":
        return [a + b for a, b in product(_PLACES.split(), _ENDINGS.split())]
    if kind == "person":
        return [f"{a} {b}" for a, b in product(_FIRST.split(), _LAST.split())]
    pattern = {"title": "The {} {}", "brand": "{} {} Ltd", "thing": "{} {}"}[kind]
    return [pattern.format(a, b) for a, b in product(_ADJECTIVES.split(), _NOUNS.split())]
