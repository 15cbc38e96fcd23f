"""Reading SQL text without parsing it: whether rows come in an order that the statement asks for."""

from __future__ import annotations

import re

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
