"""Errors of the sandboxes. Every one is a failure of ours: never an observation, never a reward of 0.

    EnvError
      - SandboxError             the sandbox did not do what was asked (also a RuntimeError); retryable
          - SandboxSetupError    this machine cannot make sandboxes: no compiler, no rights, no image
          - SandboxLostError     the sandbox, its agent or its container is gone
          - PoolBusyError        no sandbox became free in time

What the agent's own command or path did wrong is no error of ours: a command that fails, is killed or breaches a
limit comes back as `Finished`; a file that is missing or not permitted raises the OSError that `open` would raise.
"""

from palestra.envs.errors import SandboxError

__all__ = ["PoolBusyError", "SandboxError", "SandboxLostError", "SandboxSetupError"]


class SandboxSetupError(SandboxError):
    """Raised when this machine cannot make such a sandbox. The text says what is missing and how to get it."""

    retryable = False


class SandboxLostError(SandboxError):
    """Raised when a sandbox has ended, or no longer answers."""


class PoolBusyError(SandboxError):
    """Raised when all sandboxes of a pool were in use for as long as the caller would wait."""
