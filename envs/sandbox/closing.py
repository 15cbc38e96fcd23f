"""What a `with` statement closes at its end."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """Has `close()`, which `with` calls."""

    def close(self) -> None:
        """Let go of what is held. Calling it twice is fine."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
