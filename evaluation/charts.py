"""Geometry of the report's charts: curves with interval bands, and intervals side by side.

Everything here is numbers in the coordinates of an SVG view box; the templates draw them. A value that is not
finite is a gap in the line, never a zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from math import ceil, floor, isfinite, log10
from typing import Literal

from palestra.evaluation.passk import Estimate

Style = Literal["number", "percent"]
"""How values are written: 0.25 as 0.25 or as 25.0%."""

Measure = Estimate | float | None
"""A value with or without an interval; None where nothing was measured."""

_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 12, 10, 24
_MOST_DOTS = 40
_MOST_HOVERS = 120
_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One value at a training step, with its interval where there is one."""

    step: int
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Curve:
    """One quantity over training steps; points in any order."""

    name: str
    points: Sequence[CurvePoint]
    style: Style = "number"
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Tick:
    """A grid line at `at` (view-box units) and its label."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Spot:
    """A point that the reader can point at: its place, the strip in which it answers, and what it says."""

    x: float
    y: float
    left: float
    width: float
    tip: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A curve ready to be drawn in a view box of `width` by `height`."""

    name: str
    caption: str
    summary: str
    """One sentence for readers who cannot see the drawing."""
    span: str
    """First and last value, as text."""
    gaps: int
    """How many values were not finite."""
    width: int
    height: int
    lines: list[str] = field(default_factory=list)
    """`points` attributes of polylines, one per unbroken run of values."""
    bands: list[str] = field(default_factory=list)
    """`points` attributes of polygons, one per unbroken run of intervals."""
    dots: list[Spot] = field(default_factory=list)
    hovers: list[Spot] = field(default_factory=list)
    x_ticks: list[Tick] = field(default_factory=list)
    y_ticks: list[Tick] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Whisker:
    """An estimate on its row's scale, 0 to 100; `low` and `high` are `value` where it has no interval."""

    low: float
    value: float
    high: float


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps [low, high] linearly to [start, end]."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)


def draw(curve: Curve, width: int, height: int) -> Chart:
    """Lay out `curve`. A curve without a finite value gives an empty chart that says so."""
    points = sorted(curve.points, key=lambda p: p.step)
    finite = [p for p in points if isfinite(p.value)]
    if not finite:
        summary = f"{curve.name}: nothing was measured."
        return Chart(curve.name, curve.caption, summary, "no data", len(points), width, height)
    ticks_y = nice_ticks(*_value_range(finite, curve.style), count=4)
    ticks_x = [t for t in nice_ticks(finite[0].step, finite[-1].step, count=width // 110) if t == int(t)]
    x = _Scale(finite[0].step, max(finite[-1].step, finite[0].step + 1), _LEFT, width - _RIGHT)
    y = _Scale(ticks_y[0], ticks_y[-1], height - _BOTTOM, _TOP)
    spots = _spots(finite, x, y, curve.style)
    return Chart(
        name=curve.name,
        caption=curve.caption,
        summary=_summary(curve, finite),
        span=_span(finite, curve.style),
        gaps=len(points) - len(finite),
        width=width,
        height=height,
        lines=[_coordinates((x(p.step), y(p.value)) for p in run) for run in _runs(points)],
        bands=[_band(run, x, y) for run in _runs(points, banded=True)],
        dots=spots if len(spots) <= _MOST_DOTS else spots[-1:],
        hovers=spots,
        x_ticks=[Tick(x(t), f"{int(t):,}") for t in ticks_x if x.low <= t <= x.high],
        y_ticks=[Tick(y(t), show(t, curve.style).replace(".0%", "%")) for t in ticks_y],
    )


def whiskers(before: Measure, after: Measure, style: Style) -> tuple[Whisker | None, Whisker | None]:
    """Both estimates on one scale; None where nothing was measured or neither has an interval."""
    ends = [_ends(before), _ends(after)]
    known = [v for end in ends if end for v in end]
    if not any(isinstance(m, Estimate) and isfinite(m.low) for m in (before, after)):
        return None, None
    ticks = [0.0, 1.0] if style == "percent" else nice_ticks(min(known), max(known), count=4)
    scale = _Scale(min(ticks[0], *known), max(ticks[-1], *known), 4, 96)
    first, second = (Whisker(*(scale(v) for v in end)) if end else None for end in ends)
    return first, second


def show(value: float, style: Style) -> str:
    """A value as people write it: 61.3%, 0.042, 1,240, 12.3k."""
    if not isfinite(value):
        return "not finite"
    if style == "percent":
        return f"{100 * value:.1f}%"
    if abs(value) >= 10_000:
        return f"{value / 1e6:.3g}M" if abs(value) >= 1e6 else f"{value / 1e3:.3g}k"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def nice_ticks(low: float, high: float, *, count: int) -> list[float]:
    """About `count` multiples of 1, 2 or 5 times a power of ten that enclose [low, high].

    A range without width is widened around its value.
    """
    if high - low <= max(_TINY, 1e-9 * abs(low)):
        half = abs(low) / 2 if abs(low) > _TINY else 0.5
        low, high = low - half, low + half
    rough = (high - low) / max(count, 1)
    power = 10.0 ** floor(log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)
    first, last = floor(low / step + 1e-9), ceil(high / step - 1e-9)
    return [round(i * step, 2 - floor(log10(power))) for i in range(first, last + 1)]


def _value_range(points: Sequence[CurvePoint], style: Style) -> tuple[float, float]:
    ends = [v for p in points for v in (p.value, p.low, p.high) if v is not None and isfinite(v)]
    low, high = min(ends), max(ends)
    if style == "percent":
        return min(low, 0.0), high if high > 0 else 1.0
    return (0.0 if 0 <= low < 0.5 * high else low), high


def _runs(points: Sequence[CurvePoint], banded: bool = False) -> Iterator[list[CurvePoint]]:
    def unbroken(p: CurvePoint) -> bool:
        values = (p.value, p.low, p.high) if banded else (p.value,)
        return all(v is not None and isfinite(v) for v in values)

    return (list(run) for whole, run in groupby(points, key=unbroken) if whole)


def _coordinates(points: Iterator[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)


def _band(run: Sequence[CurvePoint], x: _Scale, y: _Scale) -> str:
    lower = [(x(p.step), y(p.low)) for p in run if p.low is not None]
    upper = [(x(p.step), y(p.high)) for p in run if p.high is not None]
    return _coordinates(iter(lower + upper[::-1]))


def _spots(points: Sequence[CurvePoint], x: _Scale, y: _Scale, style: Style) -> list[Spot]:
    """At most `_MOST_HOVERS` evenly chosen points, the last among them; strips meet halfway."""
    every = ceil(len(points) / _MOST_HOVERS)
    chosen = points[::-1][::every][::-1]
    at = [x(p.step) for p in chosen]
    edges = [x.start, *((a + b) / 2 for a, b in zip(at, at[1:], strict=False)), x.end]
    return [
        Spot(at[i], y(p.value), round(edges[i], 2), round(edges[i + 1] - edges[i], 2), _tip(p, style))
        for i, p in enumerate(chosen)
    ]


def _tip(point: CurvePoint, style: Style) -> str:
    text = f"step {point.step:,}: {show(point.value, style)}"
    if point.low is not None and point.high is not None:
        text += f"\n95% interval {show(point.low, style)} to {show(point.high, style)}"
    return text


def _span(points: Sequence[CurvePoint], style: Style) -> str:
    first, last = show(points[0].value, style), show(points[-1].value, style)
    return first if len(points) == 1 else f"{first} \N{RIGHTWARDS ARROW} {last}"


def _summary(curve: Curve, points: Sequence[CurvePoint]) -> str:
    values = [p.value for p in points]
    ends = [f"{show(p.value, curve.style)} at step {p.step:,}" for p in (points[0], points[-1])]
    extremes = f"lowest {show(min(values), curve.style)}, highest {show(max(values), curve.style)}"
    return f"{curve.name}: from {ends[0]} to {ends[1]}; {extremes}; {len(points)} points."


def _ends(measure: Measure) -> tuple[float, float, float] | None:
    if measure is None:
        return None
    if isinstance(measure, Estimate) and isfinite(measure.low) and isfinite(measure.high):
        return measure.low, measure.value, measure.high
    value = measure.value if isinstance(measure, Estimate) else measure
    return (value, value, value) if isfinite(value) else None
