"""Timings read like a mapping and never make two infos differ."""

from __future__ import annotations

import pickle

from palestra.envs.timings import Timings


def test_timings_are_a_mapping_whose_values_do_not_count_in_comparisons() -> None:
    timings = Timings(step=0.25)
    assert dict(timings) == {"step": 0.25} and timings["step"] == 0.25 and len(timings) == 1
    assert timings == Timings(step=99.0) and hash(timings) == hash(Timings()) and timings != {"step": 0.25}
    assert repr(pickle.loads(pickle.dumps(timings))) == "Timings(step=0.250000)"
