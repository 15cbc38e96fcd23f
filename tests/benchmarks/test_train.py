"""What the benchmark of the trainer finds on one small group."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import train
from palestra.trajectories.sample import Sample

Recorded = tuple[Path, list[list[Sample]]]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    model = train.make_model(tmp_path_factory.mktemp("model"), hidden=32)
    return model, train.record(model, tasks=1)


@pytest.mark.slow
def test_a_layout_changes_nothing_but_what_is_computed(recorded: Recorded) -> None:
    model, groups = recorded
    assert 0 < train.gradient_error(model, groups[0]) <= 1e-5
    found = train.tree(model, groups, repeats=1)
    assert found["samples"] == train.GROUP_SIZE
    assert found["prefix_tree_token_ratio"] >= 3
    assert found["packed_positions"] == sum(len(s.ids) for s in groups[0])


def test_what_is_missing_for_the_comparison_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    with pytest.raises(SystemExit, match=r"trl.* pip install 'palestra\[bench\]'.*--without-trl"):
        train.trl_needed()
