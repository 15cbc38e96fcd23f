"""Errors of the command line."""


class UsageError(Exception):
    """Raised when what the user asked for cannot be done; the text says what to type instead."""
