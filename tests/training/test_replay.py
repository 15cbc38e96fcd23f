"""Replay buffers: what is trained again, how old it is, and that a state continues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from palestra.training.replay import Entry, Replay, replays

every = pytest.mark.parametrize("name", replays)


def fresh(version: int, scores: Sequence[float] = (1.0, 0.0, 1.0, 0.0), **changes: Any) -> list[Entry]:
    return [
        Entry(
            **{
                "rollout_id": f"{version}/{k}",
                "group_id": f"{version}",
                "version": version,
                "score": score,
                "tokens": 10 + k,
                "credit": {"0": score - 0.5},
                **changes,
            }
        )
        for k, score in enumerate(scores)
    ]


def names(entries: Sequence[Entry]) -> list[str]:
    return [e.rollout_id for e in entries]


def run(replay: Replay, versions: range) -> list[list[Entry]]:
    return [replay.mix(fresh(v), v) for v in versions]


@every
def test_a_restored_state_continues(name: str) -> None:
    one, other = replays[name](3), replays[name](3)
    run(one, range(5))
    other.load_state_dict(orjson.loads(orjson.dumps(one.state_dict())))
    assert run(one, range(5, 12)) == run(other, range(5, 12))


@every
def test_no_rollout_is_trained_twice_in_a_step(name: str) -> None:
    for step in run(replays[name](0), range(10)):
        assert step and len(set(names(step))) == len(step)


def test_nothing_is_replayed_by_default() -> None:
    assert run(replays["none"](0), range(2)) == [fresh(0), fresh(1)]


@pytest.mark.parametrize("name", ["recent", "remix"])
class TestBuffers:
    def test_half_as_many_old_ones_as_new(self, name: str) -> None:
        steps = run(replays[name](0, share=0.5), range(6))
        assert [len(s) for s in steps] == [4, 6, 6, 6, 6, 6]
        assert all(names(s)[:4] == names(fresh(v)) for v, s in enumerate(steps))

    def test_none_is_too_old(self, name: str) -> None:
        for version, step in enumerate(run(replays[name](0, share=2.0, max_age=2), range(8))):
            assert min(e.version for e in step) >= version - 2

    def test_what_has_no_credit_is_not_kept(self, name: str) -> None:
        replay = replays[name](0, share=9.0)
        replay.mix(fresh(0, credit={"0": 0.0}), 0)
        assert replay.mix(fresh(1), 1) == fresh(1)

    def test_the_oldest_leave_first(self, name: str) -> None:
        replay = replays[name](0, share=9.0, capacity=4)
        run(replay, range(3))
        assert {e.version for e in replay.mix(fresh(3), 3)} == {2, 3}


def test_remix_prefers_what_is_recent() -> None:
    drawn = [
        e.version - v
        for v, s in enumerate(run(replays["remix"](0, share=1.0, decay=0.3), range(60)))
        for e in s[4:]
    ]
    assert drawn.count(-1) > 3 * drawn.count(-3) > 0


class TestRecomposition:
    def test_short_successes_and_long_failures_come_first_and_nothing_is_lost(self) -> None:
        replay = replays["rorecomp"](0, every=3)
        first, second, third = run(replay, range(3))
        assert names(first) == ["0/0", "0/1", "0/3"]
        assert sorted(names([*first, *second, *third])) == sorted(
            n for v in range(3) for n in names(fresh(v))
        )
        assert len(second) == 3 < len(third) == 6

    def test_a_step_of_equals_is_trained_as_it_is(self) -> None:
        assert len(replays["rorecomp"](0).mix(fresh(0, [1.0], tokens=5), 0)) == 1


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [("recent", {"share": -1}, "share is at least 0"), ("rorecomp", {"every": 0}, "every is at least 1")],
)
def test_refusals(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        replays[name](0, **options)
