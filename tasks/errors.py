"""Errors of the tasks package.

TaskError
  - UnknownTaskSetError   no task set of this name (also a KeyError)
  - UnknownTaskError      no task of this id in the set (also a KeyError)
  - TaskParameterError    "name?key=value" that the set does not take (also a ValueError)
  - TaskFileError         a task or benchmark file that cannot be read (also a ValueError)
  - CorpusError           a corpus of passages is missing or malformed (also a ValueError)
  - DatabaseError         a task's database is missing, corrupt or cannot be built (also a RuntimeError)
  - QueryError            a SQL statement that does not run; its text is short (also a ValueError)
      - QueryLimitError   it ran into a bound on time, work or size
"""


class TaskError(Exception):
    """Base of everything raised by palestra.tasks on purpose."""


class UnknownTaskSetError(TaskError, KeyError):
    """Raised when a name is neither registered nor a file nor a dotted path."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnknownTaskError(TaskError, KeyError):
    """Raised when a set has no task of this id."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class TaskParameterError(TaskError, ValueError):
    """Raised when the parameters in a task set's name do not fit its function."""


class TaskFileError(TaskError, ValueError):
    """Raised when a file is missing or malformed; names the file, the line or index, and the field."""


class CorpusError(TaskError, ValueError):
    """Raised when a corpus cannot be read; names the file, the line or item, and the field."""


class DatabaseError(TaskError, RuntimeError):
    """Raised when the database of a task cannot be had; names the path or the builder, and what is wrong."""


class QueryError(TaskError, ValueError):
    """Raised when a SQL statement is refused or fails."""


class QueryLimitError(QueryError):
    """Raised when a SQL statement takes too long or makes too much."""
