"""Errors of the envs package.

    EnvError
      - EnvSetupError     the world of this task cannot be made (also a RuntimeError)
      - EnvStateError     step before reset, or after the end of the episode (also a RuntimeError)
      - SessionError      a service was asked for an episode or task that it does not have (also a LookupError)
      - RetrieverError    a corpus cannot be searched: no such retriever, a server that fails (also a RuntimeError)
      - SandboxError      what contains the world broke: a sandbox, a browser, a page (also a RuntimeError); retryable

What an agent does wrong is never an exception: it is an observation.
"""


class EnvError(Exception):
    """Base of what environments raise on purpose."""


class EnvSetupError(EnvError, RuntimeError):
    """Raised when the world of a task cannot be made: no task, a missing or corrupt database."""


class EnvStateError(EnvError, RuntimeError):
    """Raised when an environment is used out of order."""


class SessionError(EnvError, LookupError):
    """Raised when a service has no such episode or task, or no room for another episode."""


class RetrieverError(EnvError, RuntimeError):
    """Raised when a retriever cannot be opened or does not answer; never for what a query says."""


class SandboxError(EnvError, RuntimeError):
    """Raised when what contains the world broke. `retryable`: the same may succeed in a new sandbox or page."""

    retryable = True
