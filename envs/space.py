"""A Gymnasium space that contains every string."""

from __future__ import annotations

from typing import Any

import gymnasium


class Unicode(gymnasium.Space[str]):
    """All strings. `gymnasium.spaces.Text` refuses spaces, newlines and the empty string; this does not.

    Not for shared-memory vector environments: use `AsyncVectorEnv(shared_memory=False)`.
    """

    def __init__(self, seed: int | None = None) -> None:
        super().__init__(shape=(), dtype=str, seed=seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Strings of any length have no flat array form."""
        return False

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """A short random string of printable characters."""
        length = int(self.np_random.integers(0, 16))
        return "".join(chr(c) for c in self.np_random.integers(32, 127, length))

    def contains(self, x: Any) -> bool:
        """True for every str."""
        return isinstance(x, str)

    def __repr__(self) -> str:
        return "Unicode()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unicode)
