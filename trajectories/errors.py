"""Errors of the trajectories package.

    TrajectoryError
      + GraphError            tokens that do not continue what was recorded
      + StoreError
          - StoreFullError    the disk is full (also an OSError)
          - StoreLockedError  another process writes to this store
          - SchemaError       the store was written by a newer version
          - CorruptError      a committed record fails its checksum
          - DuplicateError    a rollout with this id is already committed
          - NotFoundError     no such rollout (also a KeyError)
"""


class TrajectoryError(Exception):
    """Base of everything raised by palestra.trajectories on purpose."""


class GraphError(TrajectoryError, ValueError):
    """Raised when tokens would break the promise that a path is what the engine saw."""


class StoreError(TrajectoryError):
    """Base of the store's errors."""


class StoreFullError(StoreError, OSError):
    """Raised when a record could not be written for want of space; what was committed before is untouched."""


class StoreLockedError(StoreError):
    """Raised when another process has the store open for writing."""


class SchemaError(StoreError):
    """Raised when a store's schema version is newer than this package knows."""


class CorruptError(StoreError):
    """Raised when a committed record does not match its checksum."""


class DuplicateError(StoreError, ValueError):
    """Raised when a rollout id is committed twice."""


class NotFoundError(StoreError, KeyError):
    """Raised when a rollout is not in the store."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""
