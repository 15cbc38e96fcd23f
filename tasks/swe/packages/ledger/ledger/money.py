"""Amounts in whole cents."""

from __future__ import annotations

from collections.abc import Sequence


def parse_cents(text: str) -> int:
    """ "1,234.50" is 123450, "(3.10)" and "-3.10" are -310. Raises ValueError."""
    body = text.strip().replace(",", "")
    negative = body.startswith("-") or (body.startswith("(") and body.endswith(")"))
    whole, _, fraction = body.strip("-()").partition(".")
    if len(fraction) > 2:
        raise ValueError(f"{text!r} has fractions of a cent")
    cents = int(whole or "0") * 100 + int(fraction.ljust(2, "0"))
    return -cents if negative else cents


def format_cents(cents: int, brackets: bool = False) -> str:
    """123450 is "1,234.50"; negative amounts have a sign, or stand in brackets."""
    whole, rest = divmod(abs(cents), 100)
    body = f"{whole:,}.{rest:02d}"
    if cents >= 0:
        return body
    return f"({body})" if brackets else f"-{body}"


def allocate(cents: int, weights: Sequence[int]) -> list[int]:
    """Split an amount by weights; parts differ from the exact ones by less than a cent and add up to it.

    What is left over goes to those with the largest remainders, the first of equals first.
    """
    total = sum(weights)
    if total <= 0 or min(weights) < 0:
        raise ValueError("weights must not be negative, and one must be above 0")
    parts = [cents * w // total for w in weights]
    remainders = [cents * w % total for w in weights]
    order = sorted(range(len(weights)), key=lambda i: (-remainders[i], i))
    for i in order[: cents - sum(parts)]:
        parts[i] += 1
    return parts


def with_interest(cents: int, rate: float, periods: int, compound: bool = True) -> int:
    """The amount after some periods at `rate` per period, rounded half up each period."""
    grown = cents
    for _ in range(periods):
        base = grown if compound else cents
        grown += int(base * rate + 0.5)
    return grown
