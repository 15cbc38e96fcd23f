"""Readings of the authors' vectors: step batches and token matrices as tables, and how closely numbers agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from palestra.training.table import StepTable

Array = npt.NDArray[Any]


def positions(keys: Sequence[Any]) -> list[int]:
    """How often each key came before."""
    seen: dict[Any, int] = {}
    result = []
    for key in keys:
        result.append(seen.get(key, 0))
        seen[key] = result[-1] + 1
    return result


@pytest.fixture(scope="session")
def step_table() -> Callable[..., StepTable]:
    """`step_table(inputs, **columns)`: a step batch; rows of a rollout are in time order."""

    def read(inputs: dict[str, Any], **columns: Any) -> StepTable:
        own = {
            "group": inputs["index"],
            "rollout": inputs["traj_index"],
            "turn": positions(inputs["traj_index"]),
            "reward": inputs.get("rewards"),
            "anchor": inputs.get("anchor_obs", [None] * len(inputs["index"])),
        }
        if "response_mask" in inputs:
            own["tokens"] = np.sum(inputs["response_mask"], axis=1).tolist()
        return StepTable.from_columns(**own | columns)

    return read


@pytest.fixture(scope="session")
def token_table() -> Callable[..., StepTable]:
    """`token_table(inputs, **matrices)`: one row per unmasked token of a batch of sequences, in row-major order.

    `turn` is the token's position, so that masked tokens are gaps. Empty sequences have no row.
    """

    def read(inputs: dict[str, Any], **matrices: Any) -> StepTable:
        sequence, position = np.nonzero(np.array(inputs["response_mask"]))
        return StepTable.from_columns(
            group=[inputs["index"][i] for i in sequence],
            rollout=sequence.tolist(),
            turn=position.tolist(),
            reward=np.array(inputs["token_level_rewards"])[sequence, position].tolist(),
            anchor=[None] * len(sequence),
            **{name: np.array(matrix)[sequence, position].tolist() for name, matrix in matrices.items()},
        )

    return read


@pytest.fixture(scope="session")
def sequence_table() -> Callable[..., StepTable]:
    """`sequence_table(inputs)`: one row per sequence, with its summed reward; a sequence may be empty."""

    def read(inputs: dict[str, Any]) -> StepTable:
        size = len(inputs["index"])
        return StepTable.from_columns(
            group=inputs["index"],
            rollout=list(range(size)),
            turn=[0] * size,
            reward=np.sum(inputs["token_level_rewards"], axis=1).tolist(),
            anchor=[None] * size,
            tokens=np.sum(inputs["response_mask"], axis=1).tolist(),
        )

    return read


@pytest.fixture(scope="session")
def first_unmasked() -> Callable[..., Array]:
    """`first_unmasked(matrix, mask)`: the value of each row, 0 for a row that is masked throughout."""

    def read(matrix: Any, mask: Any) -> Array:
        values, seen = np.array(matrix), np.array(mask).astype(bool)
        picked: Array = np.where(seen.any(1), values[np.arange(len(values)), seen.argmax(1)], 0.0)
        return picked

    return read


@pytest.fixture(scope="session")
def assert_agree() -> Callable[..., None]:
    """`assert_agree(ours, theirs)`: the same up to float32 rounding of the largest.

    Where `equal`, all values of a group are equal and the authors divide rounding noise by epsilon: ours must be 0.
    The spread of the case tiny_spread is 1e-3 of its values, so rounding is a thousand times larger there.
    """

    def check(ours: Array, theirs: Array, *, equal: Array | None = None, where: str = "") -> None:
        if "tiny_spread" in where:
            return np.testing.assert_allclose(ours, theirs, atol=1e-3, err_msg=where)
        size = max(1.0, float(np.abs(theirs).max(initial=0)))
        told = np.ones(len(ours), bool) if equal is None else ~equal
        np.testing.assert_allclose(ours[told], theirs[told], rtol=2e-4, atol=2e-5 * size, err_msg=where)
        assert (np.abs(ours[~told]) < 1e-6 * size).all(), where

    return check


@pytest.fixture(scope="session")
def equal_groups() -> Callable[..., Array]:
    """`equal_groups(values, groups)`: rows whose group has more than one row and no two values that differ."""

    def find(values: Any, groups: Sequence[Any]) -> Array:
        x, ids = np.array(values, float), np.unique(np.array(groups), return_inverse=True)[1].reshape(-1)
        result = np.zeros(len(x), bool)
        for i in range(ids.max(initial=-1) + 1):
            members = x[ids == i]
            flat = len(members) > 1 and np.ptp(members) <= 1e-5 * (1 + np.abs(members).max())
            result |= (ids == i) & flat
        return result

    return find
