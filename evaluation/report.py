"""The report of a training or evaluation run: one HTML file that needs nothing else.

`write_report` puts a table before/after, learning curves and whole conversations, with every sampled token
shaded by its log-probability, on one page. The file holds its style, its script and its drawings; it loads
nothing, and its content security policy lets no other script run. What an agent wrote is data: it is escaped
everywhere. It measures nothing itself; see `passk.py` for the intervals.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

import jinja2
from markupsafe import Markup

import palestra
from palestra.evaluation.charts import Chart, Curve, CurvePoint, Measure, Style, draw, show, whiskers
from palestra.evaluation.conversation import SHADES, Decode, read
from palestra.evaluation.passk import Estimate
from palestra.trajectories.model import FloatArray, Trajectory

__all__ = ["Curve", "CurvePoint", "Decode", "Measure", "Report", "Row", "Story", "Style", "write_report"]

_TEMPLATES = Path(__file__).parent / "templates"
_WIDE, _SMALL = (1040, 300), (340, 190)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. Before or after may be None: not measured."""

    name: str
    before: Measure
    after: Measure
    style: Style = "number"


@dataclass(frozen=True, slots=True)
class Story:
    """One trajectory to read. `advantages` has shape (steps,), in the order of the trajectory's steps."""

    title: str
    trajectory: Trajectory
    advantages: FloatArray | None = None
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """What goes on the page, in this order. Empty parts are left out."""

    title: str
    summary: Sequence[str] = ()
    """Paragraphs."""
    rows: Sequence[Row] = ()
    curves: Sequence[Curve] = ()
    """The first one is drawn large."""
    stories: Sequence[Story] = ()
    decode: Decode | None = None
    """Shows the sampled tokens of stories; without it they show the text of their messages."""
    columns: tuple[str, str] = field(default=("Before", "After"))


def write_report(path: Path | str, report: Report) -> Path:
    """Write `report` as one self-contained HTML file and return its path.

    Raises ReportError when a story's advantages do not fit its steps, and OSError when it cannot write.
    """
    # A lone surrogate, which a JSON escape can bring in, has no UTF-8 form: it is written as \udxxx.
    Path(path).write_bytes(render_report(report).encode("utf-8", errors="backslashreplace"))
    return Path(path)


def render_report(report: Report) -> str:
    """The page as text."""
    style = (_TEMPLATES / "report.css").read_text("utf-8")
    script = (_TEMPLATES / "report.js").read_text("utf-8")
    return (
        _environment()
        .get_template("report.html")
        .render(
            report=report,
            charts=_charts(report.curves),
            conversations=[read(s.trajectory, s.advantages, report.decode) for s in report.stories],
            style=Markup(style),
            script=Markup(script),
            policy=f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}; "
            "base-uri 'none'; form-action 'none'",
            shades=SHADES,
            version=palestra.__version__,
        )
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"show": show, "signed": _signed}
    environment.globals |= {
        "whiskers": whiskers,
        "change": _change,
        "value_of": _value,
        "has_interval": _has_interval,
    }
    return environment


def _charts(curves: Sequence[Curve]) -> list[Chart]:
    return [draw(curve, *(_WIDE if i == 0 else _SMALL)) for i, curve in enumerate(curves)]


def _source(text: str) -> str:
    """The content-security-policy source that allows exactly this text inline."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _value(measure: Measure) -> float | None:
    return measure.value if isinstance(measure, Estimate) else measure


def _has_interval(measure: Measure) -> bool:
    return isinstance(measure, Estimate) and isfinite(measure.low) and isfinite(measure.high)


def _change(row: Row) -> str:
    """The difference in the row's units; in percentage points for percentages."""
    before, after = _value(row.before), _value(row.after)
    if before is None or after is None:
        return "\N{EN DASH}"
    if row.style == "percent":
        return f"{_sign(after - before)}{100 * abs(after - before):.1f} points"
    return _signed(after - before)


def _signed(value: float) -> str:
    return f"{_sign(value)}{show(abs(value), 'number')}"


def _sign(value: float) -> str:
    if value == 0:
        return ""
    return "+" if value > 0 else "\N{MINUS SIGN}"
