"""The command line. Each command is a module of its own and is imported when it runs."""

from palestra.cli.app import main

__all__ = ["main"]
