"""Reading SQL text without parsing it: whether rows come in an order that the statement asks for."""

from __future__ import annotations

import re
from collections.abc import Iterator

_TOKEN = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*` | \[[^\]]*\]   # strings and quoted names
      | --[^\n]* | /\*.*?\*/                                      # comments
      | [A-Za-z_][A-Za-z0-9_]* | [()]""",
    re.VERBOSE | re.DOTALL,
)


def is_ordered(sql: str) -> bool:
    """Whether the statement has an ORDER BY of its own, outside parentheses, strings and comments."""
    depth, previous = 0, ""
    for match in _TOKEN.finditer(sql):
        token = match.group().upper()
        if token == "BY" and previous == "ORDER" and depth == 0:
            return True
        depth += (token == "(") - (token == ")")
        if not token.startswith(("--", "/*")):
            previous = token
    return False


def words(sql: str) -> Iterator[str]:
    """The words of a statement in lower case, quoted names without their quotes; no strings, no comments."""
    for match in _TOKEN.finditer(sql):
        token = match.group()
        if token[0] == '"':
            yield token[1:-1].replace('""', '"').lower()
        elif token[0].isalpha() or token[0] == "_":
            yield token.lower()
