"""Accounts and the transactions between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date

DEBIT_KINDS = ("asset", "expense")


class UnbalancedError(ValueError):
    """Raised when the lines of a transaction do not add up to nothing."""


@dataclass(frozen=True)
class Entry:
    """One transaction: what it adds to each account, in cents; debits are above 0."""

    day: date
    lines: Mapping[str, int]
    note: str = ""


@dataclass
class Book:
    """Accounts by name with their kinds, and entries in the order of their days."""

    kinds: dict[str, str] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    def open(self, account: str, kind: str) -> None:
        """Add an account: asset, expense, liability, income or equity."""
        if account in self.kinds:
            raise ValueError(f"account {account!r} exists")
        self.kinds[account] = kind

    def post(self, entry: Entry) -> None:
        """Add an entry. Raises UnbalancedError, KeyError for an account that is not open."""
        if sum(entry.lines.values()) != 0:
            raise UnbalancedError(f"{entry.note!r} is off by {sum(entry.lines.values())}")
        for account in entry.lines:
            if account not in self.kinds:
                raise KeyError(account)
        place = len(self.entries)
        while place > 0 and self.entries[place - 1].day > entry.day:
            place -= 1
        self.entries.insert(place, entry)

    def balance(self, account: str, until: date | None = None) -> int:
        """What is in an account at the end of a day, in its natural sign."""
        total = 0
        for entry in self.entries:
            if until is not None and entry.day > until:
                break
            total += entry.lines.get(account, 0)
        return total if self.kinds[account] in DEBIT_KINDS else -total

    def statement(self, account: str) -> list[tuple[date, str, int, int]]:
        """(day, note, change, running balance) of each entry that touches an account."""
        sign = 1 if self.kinds[account] in DEBIT_KINDS else -1
        running, rows = 0, []
        for entry in self.entries:
            if account in entry.lines:
                change = sign * entry.lines[account]
                running += change
                rows.append((entry.day, entry.note, change, running))
        return rows

    def totals(self, kind: str) -> dict[str, int]:
        """Balances of the accounts of one kind that are not empty, the largest first."""
        found = {name: self.balance(name) for name, k in self.kinds.items() if k == kind}
        return dict(
            sorted(((n, b) for n, b in found.items() if b != 0), key=lambda pair: (-pair[1], pair[0]))
        )

    def profit(self, months: Iterable[tuple[int, int]]) -> int:
        """Income less expenses in some (year, month) pairs."""
        wanted = set(months)
        total = 0
        for entry in self.entries:
            if (entry.day.year, entry.day.month) in wanted:
                for account, cents in entry.lines.items():
                    if self.kinds[account] in ("income", "expense"):
                        total -= cents
        return total
