"""Errors of the trajectories package.

TrajectoryError
  + GraphError            tokens that do not continue what was recorded
  + ExportError           an export that cannot be written, or not continued, as asked (also a ValueError)
  + TraceError            a file that is no trace of a known version (also a ValueError)
  + StoreError
      - NoStoreError      there is no store at this path (also a FileNotFoundError)
      - StoreFullError    the disk is full (also an OSError)
      - StoreLockedError  another process writes to this store
      - SchemaError       the store was written by a newer version
      - CorruptError      a committed record is damaged
      - EncodeError       a record holds a value that cannot be written (also a TypeError)
      - DuplicateError    a rollout with this id is already committed
      - NotFoundError     no such rollout or blob (also a KeyError)
"""


class TrajectoryError(Exception):
    """Base of everything raised by palestra.trajectories on purpose."""


class GraphError(TrajectoryError, ValueError):
    """Raised when tokens would break the promise that a path is what the engine saw."""


class ExportError(TrajectoryError, ValueError):
    """Raised when rollouts cannot be exported as asked."""


class TraceError(TrajectoryError, ValueError):
    """Raised when a file is not a trace that can be read."""


class StoreError(TrajectoryError):
    """Base of the store's errors."""


class NoStoreError(StoreError, FileNotFoundError):
    """Raised when a store is opened for reading where there is none."""


class StoreFullError(StoreError, OSError):
    """Raised when a record could not be written for want of space; what was committed before is untouched."""


class StoreLockedError(StoreError):
    """Raised when another process has the store open for writing."""


class SchemaError(StoreError):
    """Raised when a store's schema version is newer than this package knows."""


class CorruptError(StoreError):
    """Raised when a committed record does not match its checksum or does not read as what it claims to be."""


class EncodeError(StoreError, TypeError):
    """Raised when a record holds a value of a type that cannot be written exactly."""


class DuplicateError(StoreError, ValueError):
    """Raised when a rollout id is committed twice."""


class NotFoundError(StoreError, KeyError):
    """Raised when a rollout or a blob is not in the store."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""
