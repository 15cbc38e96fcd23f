import re
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from palestra.evaluation.errors import ReportError
from palestra.evaluation.passk import Estimate
from palestra.evaluation.report import Curve, CurvePoint, Report, Row, Story, render_report, write_report
from palestra.trajectories.model import Failure, Message, Rollout, Score, ToolCall, Trajectory

Decode = Callable[[Sequence[int]], str]

ATTACK = (
    "</pre></script><script>alert(1)</script><img src=x onerror=alert(2)>\" onmouseover='alert(3)' "
    "{{ 7*7 }} {% raw %}"
)
VOID = {"meta", "link", "img", "br", "hr", "input"}
SVG_LEAVES = {"line", "circle", "rect", "polyline", "polygon"}


class Page(HTMLParser):
    """Tags with their attributes, text by enclosing tag; fails on tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SVG_LEAVES
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append((self.open[-1] if self.open else "", data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def report(write: Callable[..., Trajectory], decode: Decode) -> Report:
    points = [CurvePoint(i, i / 10, i / 10 - 0.05, i / 10 + 0.05) for i in range(8)]
    return Report(
        title="A run",
        summary=["It learned."],
        rows=[
            Row(
                "pass@1", Estimate(0.25, 0.2, 0.3, 40, 160, 0), Estimate(0.5, 0.4, 0.6, 40, 157, 3), "percent"
            ),
            Row("turns", 9.4, 4.6),
            Row("new split", None, 0.4),
        ],
        curves=[Curve("success", points, "percent"), Curve("loss", [CurvePoint(0, float("nan"))])],
        stories=[
            Story("One rollout", write("How many?", "Let me look."), np.array([0.25], np.float32), "caption")
        ],
        decode=decode,
    )


def test_the_page_is_well_formed_and_complete(report: Report, tmp_path: Path) -> None:
    path = write_report(tmp_path / "report.html", report)
    text = path.read_text("utf-8")
    Page(text)
    for expected in (
        "A run",
        "It learned.",
        "+25.0 points",
        "−4.8",
        "not measured",
        "3 failed",
        "caption",
        "1 value was not finite",
    ):
        assert expected in text


def test_the_page_loads_nothing(report: Report) -> None:
    text = render_report(report)
    assert not re.search(r"https?://|url\(|@import|\ssrc=|<link", text)
    assert all(str(a["href"]).startswith("#") for a in Page(text).all("a"))


def test_links_on_the_page_have_targets(report: Report) -> None:
    page = Page(render_report(report))
    ids = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {str(a["href"])[1:] for a in page.all("a")} <= ids


def hostile(write: Callable[..., Trajectory], decode: Decode) -> Report:
    reply = write(ATTACK, ATTACK, ATTACK)
    arguments = write(ATTACK, ATTACK, '{"sql</dt>": "<script>alert(4)</script>"}')
    rollout = Rollout(
        ATTACK, "run", "g", ATTACK, 0, 0, "eval", ATTACK, ATTACK, "tokens", 0,
        Score(1.0, True, {ATTACK: 1.0}, ATTACK, ATTACK, ATTACK), None, findings=(ATTACK,),
    )  # fmt: skip
    failed = Rollout(
        "r", "run", "g", "t", 0, 0, "eval", "h", "1", "tokens", 0, None, Failure("env", ATTACK, ATTACK)
    )
    return Report(
        title=ATTACK,
        summary=[ATTACK],
        rows=[Row(ATTACK, 0.1, 0.2)],
        curves=[Curve(ATTACK, [CurvePoint(0, 1.0)], caption=ATTACK), Curve(ATTACK, [])],
        stories=[
            Story(ATTACK, reply, None, ATTACK),
            Story("b", arguments),
            Story("c", Trajectory(rollout, reply.nodes, reply.calls, reply.steps)),
            Story("d", Trajectory(failed)),
        ],
        decode=decode,
        columns=(ATTACK, ATTACK),
    )


@pytest.mark.parametrize("decoded", [True, False])
def test_what_an_agent_wrote_stays_text(
    write: Callable[..., Trajectory], decode: Decode, decoded: bool
) -> None:
    attack = hostile(write, decode)
    if not decoded:
        attack = Report(attack.title, stories=attack.stories)
    page = Page(render_report(attack))
    assert len(page.all("script")) == 1 and page.all("img") == []
    assert all(not name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert "{{ 7*7 }}" in "".join(text for _, text in page.text)


def test_the_policy_allows_the_page_its_own_script_and_no_other(report: Report) -> None:
    import base64
    import hashlib

    text = render_report(report)
    (policy,) = [m["content"] or "" for m in Page(text).all("meta") if m.get("http-equiv")]
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    for tag in ("script", "style"):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert all("style" not in attributes for _, attributes in Page(text).tags)


def test_sampled_text_is_shown_exactly_as_it_was_sampled(recorder: Any, decode: Decode) -> None:
    said = '  two  spaces\n\n\tand é 😀 <b> & "quotes"\n'
    recorder.call([Message("user", "q")], Message("assistant", said))
    text = render_report(Report("r", stories=[Story("s", recorder.trajectory())], decode=decode))
    body = re.search(r'<pre class="tokens".*?>(.*?)</pre>', text, re.DOTALL)
    assert body and "".join(t for _, t in Page(body[1]).text) == "<assistant>" + said
    assert len(Page(body[1]).all("i")) == len("<assistant>" + said)


def test_tokens_carry_what_the_tooltip_says(report: Report) -> None:
    page = Page(render_report(report))
    (block,) = [a for a in page.all("pre") if a.get("class") == "tokens"]
    assert (block["data-steps"], block["data-advantages"]) == ("0", "+0.25")
    sampled = [a for a in page.all("i") if "data-logprob" in a]
    assert len(sampled) == len('Let me look.{"sql": "SELECT 1"}')
    assert sampled[0] == {"class": "s0", "data-ids": str(ord("L")), "data-logprob": "-0.000"} | sampled[0]
    assert float(sampled[-1]["data-logprob"] or 0) == -2.0


def test_a_lone_surrogate_can_be_written(recorder: Any, tmp_path: Path) -> None:
    recorder.call(
        [Message("user", "q")], Message("assistant", "a", tool_calls=(ToolCall("c", "\ud800", "{}"),))
    )
    path = write_report(tmp_path / "r.html", Report("r", stories=[Story("s", recorder.trajectory())]))
    assert r"\ud800" in path.read_text("utf-8")


def test_a_failed_rollout_shows_no_score(recorder: Any) -> None:
    recorder.call([Message("user", "q")], Message("assistant", "a"))
    done = recorder.trajectory()
    rollout = Rollout(
        "r",
        "run",
        "g",
        "t",
        0,
        0,
        "eval",
        "h",
        "1",
        "tokens",
        0,
        None,
        Failure("sandbox", "exec", "no memory"),
    )
    text = render_report(Report("r", stories=[Story("s", Trajectory(rollout, done.nodes, done.calls))]))
    assert "no reward" in text and "failed in sandbox, at exec: no memory" in text
    assert "score 0" not in text
    invalid = recorder.trajectory(Score(None, False, evidence="the gold answer does not run"))
    assert "no valid score" in render_report(Report("r", stories=[Story("s", invalid)]))


def test_charts_and_tables_can_be_read_without_seeing(report: Report) -> None:
    page = Page(render_report(report))
    charts = [a for a in page.all("svg") if a.get("role") == "img"]
    assert len(charts) == 2 and all(a["aria-label"] for a in charts)
    assert {a.get("scope") for a in page.all("th")} == {"row", "col"}
    assert len(page.all("caption")) == 1


def test_a_report_without_parts_is_a_title(tmp_path: Path) -> None:
    page = Page(render_report(Report("Nothing yet")))
    assert [a for a in page.all("section")] == []


def test_the_same_report_is_the_same_file(report: Report) -> None:
    assert render_report(report) == render_report(report)


def test_advantages_that_do_not_fit_are_refused(write: Callable[..., Trajectory]) -> None:
    with pytest.raises(ReportError, match="give one advantage per step"):
        render_report(Report("r", stories=[Story("s", write("q", "a"), np.zeros(3, np.float32))]))
