import argparse
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from measure import Bench, Measurement, Reading, Timing, machine, measure, system_clock


class FakeClock:
    """Time passes only where a candidate says so; CPU time at half the speed."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.log: list[str] = []

    def __call__(self) -> Reading:
        return Reading(self.now_s, self.now_s / 2)

    def spend(self, name: str, *seconds: float) -> "Candidate":
        return Candidate(self, name, seconds)


class Candidate:
    """Takes the given seconds call by call; the last for ever after."""

    def __init__(self, clock: FakeClock, name: str, seconds: tuple[float, ...]) -> None:
        self.clock, self.name, self.left = clock, name, list(seconds)

    def __call__(self) -> None:
        self.clock.log.append(self.name)
        self.clock.now_s += self.left.pop(0) if len(self.left) > 1 else self.left[0]


def test_candidates_take_turns() -> None:
    clock = FakeClock()
    measure({"a": clock.spend("a", 1), "b": clock.spend("b", 1)}, repeats=3, warmup=1, clock=clock)
    assert clock.log == ["a", "b"] * 4


def test_the_warmup_is_not_measured() -> None:
    clock = FakeClock()
    result = measure({"a": clock.spend("a", 100, 100, 1)}, repeats=4, warmup=2, clock=clock)
    assert result.timings["a"].wall_s == (1, 1, 1, 1)


def test_ratios_are_taken_pair_by_pair() -> None:
    clock = FakeClock()
    result = measure(
        {"a": clock.spend("a", 1, 10, 100), "b": clock.spend("b", 2, 20, 200)},
        repeats=3,
        warmup=0,
        clock=clock,
    )
    assert result.wall_ratio("b").pairs == pytest.approx((2, 2, 2))
    summary = result.summary()["b"]
    assert summary["wall_ratio"] == pytest.approx({"median": 2, "q1": 2, "q3": 2})
    assert summary["wall_median_s"] == pytest.approx(20)
    assert summary["wall_min_s"] == pytest.approx(2)
    assert summary["cpu_median_s"] == pytest.approx(10)
    assert summary["repeats"] == 3


def test_the_spread_is_the_quartiles_of_the_pairs() -> None:
    result = Measurement({"a": Timing((1,) * 5, (1,) * 5), "b": Timing((1, 2, 3, 4, 5), (5, 4, 3, 2, 1))})
    assert result.wall_ratio("b").summary() == {"median": 3, "q1": 2, "q3": 4}


def test_the_first_candidate_is_the_baseline_and_has_no_ratio() -> None:
    result = Measurement({"z": Timing((1,), (1,)), "a": Timing((3,), (4,))})
    assert result.baseline == "z"
    assert "wall_ratio" not in result.summary()["z"]
    assert result.summary()["a"]["cpu_ratio"] == {"median": 4, "q1": 4, "q3": 4}


def test_a_baseline_without_cpu_time_has_no_cpu_ratio() -> None:
    result = Measurement({"sleep": Timing((1, 1), (0.0, 0.1)), "work": Timing((1, 1), (1, 1))})
    assert result.cpu_ratio("work") is None
    assert result.summary()["work"]["cpu_ratio"] is None


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=9), st.floats(0.01, 100))
def test_a_candidate_of_k_times_the_cost_has_ratio_k(costs: list[float], k: float) -> None:
    base = tuple(costs)
    result = Measurement({"a": Timing(base, base), "b": Timing(tuple(k * c for c in base), base)})
    assert list(result.wall_ratio("b").summary().values()) == pytest.approx([k, k, k])


def test_a_call_too_short_for_the_clock_is_refused() -> None:
    clock = FakeClock()
    with pytest.raises(ValueError, match="'a' took no time"):
        measure({"a": clock.spend("a", 0)}, clock=clock)


def test_nothing_to_measure_is_refused() -> None:
    with pytest.raises(ValueError, match="need candidates"):
        measure({})
    with pytest.raises(ValueError, match="repeats >= 1"):
        measure({"a": lambda: None}, repeats=0)


def test_the_system_clock_counts_the_cpu_of_children() -> None:
    before = system_clock()
    subprocess.run([sys.executable, "-S", "-c", "sum(range(2_000_000))"], check=True)
    after = system_clock()
    assert after.wall_s > before.wall_s
    assert after.cpu_s - before.cpu_s > 0.005


def measured() -> Measurement:
    return Measurement({"old": Timing((2.0, 2.0), (1.0, 1.0)), "new": Timing((1.0, 1.0), (0.5, 0.5))})


def test_json_is_one_object_with_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench("Commit", example="python commit.py --quick")
    bench.parse(["--json"])
    bench.show({"small": measured()}, tokens=12)
    body = json.loads(capsys.readouterr().out)
    assert body["benchmark"] == "Commit" and body["tokens"] == 12
    assert body["cases"]["small"]["new"]["wall_ratio"]["median"] == 0.5
    assert body["machine"].keys() == machine().keys()


def test_the_table_names_every_case_and_candidate(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench("Commit", example="python commit.py")
    bench.parse([])
    bench.show({"small": measured(), "large": measured()}, tokens=12)
    out = capsys.readouterr().out
    for expected in ("small", "large", "old", "new", "0.500", "tokens: 12", "python: "):
        assert expected in out


@pytest.mark.parametrize(
    ("argv", "repeats"),
    [([], 15), (["--quick"], 3), (["--quick", "--repeats", "7"], 7), (["--repeats", "0"], 0)],
)
def test_quick_means_few_repeats(argv: list[str], repeats: int) -> None:
    assert Bench("b", example="x").parse(argv).repeats == repeats


def test_a_script_adds_its_own_options_and_help_shows_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench("b", example="python commit.py --tokens 5")
    bench.parser.add_argument("--tokens", type=int, default=1)
    args: argparse.Namespace = bench.parse(["--tokens", "5"])
    assert args.tokens == 5
    with pytest.raises(SystemExit):
        bench.parse(["--help"])
    assert "python commit.py --tokens 5" in capsys.readouterr().out


def test_the_machine_is_described_without_naming_it() -> None:
    facts = machine()
    assert facts["cores"] >= 1 and "numpy" in facts["packages"]
    assert facts.keys() == {"cores", "load_1min", "system", "python", "packages"}
