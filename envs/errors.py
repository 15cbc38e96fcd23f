"""Errors of the envs package.

    EnvError
      - EnvSetupError     the world of this task cannot be made (also a RuntimeError)
      - EnvStateError     step before reset, or after the end of the episode (also a RuntimeError)
      - SandboxError      what contains the world broke: a browser or page that crashed or hangs

What an agent does wrong is never an exception: it is an observation.
"""


class EnvError(Exception):
    """Base of what environments raise on purpose."""


class EnvSetupError(EnvError, RuntimeError):
    """Raised when the world of a task cannot be made: no task, a missing or corrupt database."""


class EnvStateError(EnvError, RuntimeError):
    """Raised when an environment is used out of order."""


class SandboxError(EnvError):
    """Raised when what contains the world broke: a browser or a page that crashed or hangs."""
