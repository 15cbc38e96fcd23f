"""WebArena's checks of an answer and of an address, and which of its checks have to look at pages.

Source: Zhou et al. 2023 (arXiv:2307.13854), web-arena-x/webarena, evaluation_harness/evaluators.py. What its
`fuzzy_match` asks a language model is a measurement only where the answer is literally the reference; elsewhere the
outcome is not judged. The reference `N/A` is matched by an answer that says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from palestra.rewards.score import GraderError

KINDS = ("string_match", "url_match", "program_html")


def string_match(answer: str, references: Mapping[str, Any]) -> bool:
    """All of exact_match, must_include and fuzzy_match. Raises GraderError where only a model could tell."""
    found = [_exact(answer, references["exact_match"])] if "exact_match" in references else []
    wanted = references.get("must_include", ())
    found += [_includes(answer, phrase, alone=len(wanted) == 1) for phrase in wanted]
    if "fuzzy_match" in references:
        found.append(_fuzzy(answer, references["fuzzy_match"]))
    return all(found)


def url_match(url: str, reference: str, note: str = "GOLD in PRED") -> bool:
    """Whether `url` has one of the reference's paths (parted by |OR|) and all values of its query."""
    if note != "GOLD in PRED":
        raise GraderError(f"url_match knows the rule 'GOLD in PRED', not {note!r}")
    golds = [_parts(one) for one in reference.split(" |OR| ")]
    base, query = _parts(url)
    if not any(gold in base for gold, _ in golds):
        return False
    wanted: dict[str, set[str]] = {}
    for _, values in golds:
        for key, several in values.items():
            wanted.setdefault(key, set()).update(several)
    return all(any(value in query.get(key, ()) for value in values) for key, values in wanted.items())


def page_content(text: str, required: Mapping[str, Any]) -> bool:
    """Whether the text that a locator found has what is required; |OR| parts alternatives."""
    if "exact_match" in required:
        return _exact(text, required["exact_match"])
    if "must_include" in required:
        return all(
            any(_includes(text, p) for p in phrase.split(" |OR| ")) for phrase in required["must_include"]
        )
    raise GraderError(f"required_contents has neither exact_match nor must_include: {sorted(required)}")


def _exact(answer: str, reference: str) -> bool:
    return _clean(answer) == _clean(reference)


def _includes(answer: str, phrase: str, alone: bool = False) -> bool:
    """As words where the phrase is one short word and the only one that is asked for; else anywhere."""
    said, wanted = _clean(answer), _clean(phrase)
    if alone and len(wanted) == 1:
        return wanted in re.findall(r"\w+|[^\w\s]", said)
    return wanted in said


def _fuzzy(answer: str, reference: str | Sequence[str]) -> bool:
    if reference == "N/A":
        return _clean(answer) == "n/a"
    if all(_includes(answer, one) for one in ([reference] if isinstance(reference, str) else reference)):
        return True
    raise GraderError("fuzzy_match needs a language model where the answer does not contain the reference")


def _clean(text: str) -> str:
    stripped = text.strip()
    if len(stripped) > 1 and stripped[0] == stripped[-1] and stripped[0] in "'\"":
        stripped = stripped[1:-1]
    return stripped.lower()


def _parts(url: str) -> tuple[str, dict[str, list[str]]]:
    parsed = urlsplit(url.rstrip("/"))
    return parsed.netloc + parsed.path, parse_qs(parsed.query)
