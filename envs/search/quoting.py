"""Retrieved text is quoted: it can look like nothing but text of somebody else.

A passage may hold an answer tag, a tool call, a chat template's control token or a forged result header, by accident or
planted. No action is ever read from an observation, and tokens of observations are never trained on; quoting keeps such
text from being tokenised as control tokens and from being taken for the environment's own words:

    <answer>, </s>, <|im_end|>, <｜...      the < becomes &lt; before letters and the signs with which markup begins
    [INST], [TOOL_CALLS]                    square brackets around capitals become round
    control, format and surrogate characters are dropped, so nothing hides in them
    every line of it begins with "| ", which no line of the environment does
"""

from __future__ import annotations

import re
import unicodedata

_MARKUP = re.compile(r"<(?=[A-Za-z/!?|｜▁_\[<\\])")
_BRACKETS = re.compile(r"\[(/?[A-Z][A-Z_ ]{1,30})\]")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn"})


def plain(text: str) -> str:
    """`text` without anything that a tokenizer or a reader takes for more than text; lines stay."""
    if not text.isascii() or not text.isprintable():
        text = "".join(_visible(c) for c in text)
    return _BRACKETS.sub(r"(\1)", _MARKUP.sub("&lt;", text))


def label(text: str) -> str:
    """The same on one line without square brackets: for ids and titles."""
    return " ".join(plain(text).replace("[", "(").replace("]", ")").split())


def quoted(text: str) -> str:
    """`plain(text)` with "| " before every line."""
    return "\n".join(f"| {line}" for line in plain(text).split("\n"))


def _visible(character: str) -> str:
    if character in "\n\t\r\v\f\x85\u2028\u2029":
        return "\n" if character == "\n" else " "
    return "" if unicodedata.category(character) in _HIDDEN else character
