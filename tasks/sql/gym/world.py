"""The words of a generated database: worlds, entities (tables) and fields (columns) with what fills them.

A `World` is pure description, read from a .world.toml file of this folder; `population.py` makes the database
and `questions.py` asks about it. Each entity has an integer key, perhaps a unique label, fields with a role
and a phrase for questions, and parents that its rows point to. A parent comes before its children.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib import resources
from typing import Any, Literal

from palestra.tasks.sql.schema import Column, Table
from palestra.tasks.task import Split

_SUFFIX = ".world.toml"

Role = Literal["category", "number", "date"]


@dataclass(frozen=True, slots=True)
class Field:
    """One column. `phrase` names it in questions; `null` is the share of rows without a value."""

    name: str
    role: Role
    phrase: str
    values: tuple[str, ...] = ()
    """Of a category."""
    low: float = 0
    high: float = 0
    """Of a number, or the first and last year of a date."""
    decimals: int = 0
    null: float = 0.0

    @property
    def type(self) -> str:
        """The SQL type."""
        if self.role == "number":
            return "REAL" if self.decimals else "INTEGER"
        return "DATE" if self.role == "date" else "TEXT"


@dataclass(frozen=True, slots=True)
class Entity:
    """One table. `label`: person, title, place, brand, thing, plate, or "" for rows without names."""

    table: str
    one: str
    many: str
    rows: int
    fields: tuple[Field, ...]
    label: str = ""
    parents: tuple[str, ...] = ()
    """Tables that each row points to."""
    key: str = "id"
    name: str = "name"
    """The label's column."""

    def of_role(self, role: Role) -> list[Field]:
        """The fields of one role, in order."""
        return [f for f in self.fields if f.role == role]


@dataclass(frozen=True, slots=True)
class World:
    """One database; parents come before their children."""

    name: str
    split: Split
    entities: tuple[Entity, ...]

    def entity(self, table: str) -> Entity:
        """The entity of a table."""
        return next(e for e in self.entities if e.table == table)

    def foreign_key(self, parent: str) -> str:
        """The column by which children point to `parent`."""
        return f"{self.entity(parent).one.replace(' ', '_')}_id"

    def schema(self, entity: Entity) -> Table:
        """The table of an entity: key, label, foreign keys, fields."""
        columns = [Column(entity.key, "INTEGER", primary_key=True)]
        if entity.label:
            columns.append(Column(entity.name, "TEXT", not_null=True))
        for parent in entity.parents:
            key = self.foreign_key(parent), "INTEGER"
            columns.append(Column(*key, not_null=True, references=(parent, self.entity(parent).key)))
        columns += [Column(f.name, f.type, not_null=not f.null) for f in entity.fields]
        return Table(entity.table, tuple(columns))


def load_worlds() -> tuple[World, ...]:
    """All worlds of this folder, by name."""
    files = {p.name: p for p in resources.files(__package__).iterdir() if p.name.endswith(_SUFFIX)}
    return tuple(
        _world(name.removesuffix(_SUFFIX), files[name].read_text(encoding="utf-8")) for name in sorted(files)
    )


def _world(name: str, text: str) -> World:
    body = tomllib.loads(text)
    return World(name, body["split"], tuple(_entity(dict(e)) for e in body["entities"]))


def _entity(body: dict[str, Any]) -> Entity:
    fields = tuple(_field(name, dict(f)) for name, f in body.pop("fields").items())
    return Entity(**body | {"fields": fields, "parents": tuple(body.get("parents", ()))})


def _field(name: str, body: dict[str, Any]) -> Field:
    values = tuple(v.strip() for v in body.pop("values", "").split(",") if v)
    return Field(name=name, values=values, **body)
