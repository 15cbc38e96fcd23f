"""How long a step took, kept apart from what happened in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class Timings(Mapping[str, float]):
    """Seconds by stage. Any two are equal: a step that is repeated is the same step, however long it takes.

    `gymnasium.utils.env_checker.check_env` compares the infos of two runs with ==.
    """

    def __init__(self, **seconds: float) -> None:
        self._seconds = seconds

    def __getitem__(self, stage: str) -> float:
        return self._seconds[stage]

    def __iter__(self) -> Iterator[str]:
        return iter(self._seconds)

    def __len__(self) -> int:
        return len(self._seconds)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timings)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"Timings({', '.join(f'{stage}={seconds:.6f}' for stage, seconds in self.items())})"
