"""What the sites share: pages from templates, forms, redirects, and a database in memory."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

import jinja2
from starlette.applications import Starlette
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

Handler = Callable[[Request], Awaitable[Response]]
Row = Mapping[str, Any]


class WrongInput(Exception):
    """Raised by a handler: the visitor is shown the text."""


class Site:
    """Base of the sites. A site has `routes` and handlers; `user` is who is logged in."""

    name = ""

    def __init__(self, db: sqlite3.Connection, user: str) -> None:
        self.db, self.user = db, user
        self.app = Starlette(routes=self.routes(), exception_handlers={WrongInput: self._refused})

    def routes(self) -> Sequence[Route]:
        """The routes of the site."""
        raise NotImplementedError

    def rows(self, sql: str, *values: Any) -> list[Row]:
        """All rows as mappings."""
        cursor = self.db.execute(sql, values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def row(self, sql: str, *values: Any) -> Row:
        """The first row. Raises WrongInput where there is none."""
        found = self.rows(sql, *values)
        if not found:
            raise WrongInput("There is no such thing here.")
        return found[0]

    def run(self, sql: str, *values: Any) -> None:
        """Change the database. Raises WrongInput where a constraint forbids it."""
        try:
            self.db.execute(sql, values)
        except sqlite3.IntegrityError:
            raise WrongInput("This is there already.") from None

    def page(self, template: str, **values: Any) -> Response:
        """A page of the site."""
        found = templates().get_template(f"{self.name}_{template}.html")
        return HTMLResponse(found.render(user=self.user, **values))

    async def _refused(self, request: Request, error: Exception) -> Response:
        page = templates().get_template(f"{self.name}_message.html")
        return HTMLResponse(page.render(user=self.user, message=str(error)), status_code=400)


def go(path: str) -> Response:
    """On to another page after a form was sent."""
    return RedirectResponse(path, status_code=303)


def field(form: FormData, name: str) -> str:
    """A field that must not be empty. Raises WrongInput."""
    value = form.get(name)
    if not isinstance(value, str) or not value.strip():
        raise WrongInput(f"Please fill in the field {name}.")
    return value.strip().replace("\r\n", "\n")


def whole(form: FormData, name: str, low: int, high: int) -> int:
    """A whole number within bounds. Raises WrongInput."""
    value = field(form, name)
    if not value.isdecimal() or not low <= int(value) <= high:
        raise WrongInput(f"{name} must be a whole number from {low} to {high}.")
    return int(value)


def choice(form: FormData, name: str, allowed: Sequence[str]) -> str:
    """One of some values. Raises WrongInput."""
    value = field(form, name)
    if value not in allowed:
        raise WrongInput(f"{name} must be one of {', '.join(allowed)}.")
    return value


@functools.cache
def templates() -> jinja2.Environment:
    """The templates of all sites, with everything escaped."""
    folder = files("palestra.envs.web.apps") / "templates"
    loader = jinja2.FunctionLoader(lambda name: (folder / name).read_text())
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["euros"] = lambda cents: f"{cents / 100:.2f}"
    return environment
