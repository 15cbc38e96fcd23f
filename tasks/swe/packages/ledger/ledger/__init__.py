"""Double-entry bookkeeping."""

from ledger.book import Book, Entry, UnbalancedError
from ledger.money import allocate, format_cents, parse_cents, with_interest

__all__ = ["Book", "Entry", "UnbalancedError", "allocate", "format_cents", "parse_cents", "with_interest"]
