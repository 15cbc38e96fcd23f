import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.evaluation.charts import Curve, CurvePoint, draw, nice_ticks, show, whiskers
from palestra.evaluation.passk import Estimate

NAN = math.nan
VALUES = st.floats(-1e6, 1e6) | st.just(NAN) | st.just(math.inf)


def curve(*values: float) -> Curve:
    return Curve("loss", [CurvePoint(10 * i, v) for i, v in enumerate(values)])


def test_a_value_that_is_not_finite_breaks_the_line() -> None:
    chart = draw(curve(1.0, 2.0, NAN, 3.0, 4.0, math.inf), 400, 200)
    assert [len(line.split()) for line in chart.lines] == [2, 2]
    assert "nan" not in "".join(chart.lines)
    assert chart.gaps == 2


@pytest.mark.parametrize("values", [(), (NAN,), (NAN, math.inf)])
def test_a_curve_without_a_finite_value_says_so(values: tuple[float, ...]) -> None:
    chart = draw(curve(*values), 400, 200)
    assert (chart.lines, chart.span, chart.summary) == ([], "no data", "loss: nothing was measured.")


def test_points_are_drawn_in_order_of_steps() -> None:
    shuffled = Curve("loss", [CurvePoint(20, 3.0), CurvePoint(0, 1.0), CurvePoint(10, 2.0)])
    assert draw(shuffled, 400, 200).lines == draw(curve(1.0, 2.0, 3.0), 400, 200).lines


def test_the_summary_reads_the_curve_aloud() -> None:
    chart = draw(Curve("success", [CurvePoint(0, 0.125), CurvePoint(10, 0.5)], "percent"), 400, 200)
    assert chart.summary == (
        "success: from 12.5% at step 0 to 50.0% at step 10; lowest 12.5%, highest 50.0%; 2 points."
    )
    assert chart.span == "12.5% → 50.0%"


def test_the_band_spans_only_points_with_an_interval() -> None:
    points = [
        CurvePoint(0, 0.1, 0.0, 0.2),
        CurvePoint(1, 0.2, 0.1, 0.3),
        CurvePoint(2, 0.3),
        CurvePoint(3, 0.4, 0.3),
    ]
    assert [len(band.split()) for band in draw(Curve("s", points), 400, 200).bands] == [4]


def test_a_long_curve_keeps_every_point_of_the_line_and_thins_the_hover_targets() -> None:
    chart = draw(curve(*range(5000)), 400, 200)
    assert len(chart.lines[0].split()) == 5000
    assert len(chart.hovers) <= 120
    assert chart.hovers[-1].tip.startswith("step 49,990")


@given(st.lists(st.builds(CurvePoint, st.integers(0, 10**6), VALUES, st.none() | VALUES, st.none() | VALUES)))
def test_everything_stays_inside_the_view_box(points: list[CurvePoint]) -> None:
    chart = draw(Curve("any", points), 400, 200)
    for place in re.findall(r"(\S+),(\S+)", " ".join(chart.lines + chart.bands)):
        assert 0 <= float(place[0]) <= 400 and 0 <= float(place[1]) <= 200
    assert all(0 <= s.left <= 400 and s.width >= 0 for s in chart.hovers)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9), st.integers(2, 10))
def test_ticks_enclose_the_range_and_are_few(low: float, width: float, count: int) -> None:
    high = low + width
    ticks = nice_ticks(low, high, count=count)
    slack = 1e-6 * max(abs(low), abs(high), 1)
    assert ticks[0] <= low + slack and ticks[-1] >= high - slack
    assert 2 <= len(ticks) <= count + 3


@pytest.mark.parametrize(
    ("value", "style", "text"),
    [
        (0.6125, "percent", "61.3%"),
        (0.0, "percent", "0.0%"),
        (0.0417, "number", "0.0417"),
        (1240.4, "number", "1,240"),
        (12_340.0, "number", "12.3k"),
        (2.5e6, "number", "2.5M"),
        (NAN, "number", "not finite"),
    ],
)
def test_numbers_as_people_write_them(value: float, style: str, text: str) -> None:
    assert show(value, style) == text  # type: ignore[arg-type]


def test_whiskers_share_one_scale() -> None:
    low = Estimate(0.2, 0.1, 0.3, 10, 10, 0)
    before, after = whiskers(low, Estimate(0.8, 0.7, 0.9, 10, 10, 0), "percent")
    assert before and after
    assert before.low < before.value < before.high < after.low < after.value < after.high
    same, again = whiskers(low, low, "percent")
    assert same == again


def test_no_whiskers_without_an_interval_and_none_for_what_was_not_measured() -> None:
    assert whiskers(0.1, 0.2, "number") == (None, None)
    assert whiskers(Estimate(1.0, NAN, NAN, 3, 3, 0), 0.2, "number") == (None, None)
    before, after = whiskers(None, Estimate(0.8, 0.7, 0.9, 10, 10, 0), "percent")
    assert before is None and after is not None
