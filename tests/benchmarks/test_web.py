"""The benchmark of the web world runs, and measures what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

import web
from browsers import browser
from needs import need

pytestmark = pytest.mark.xdist_group("palestra/Web-v0")


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without BrowserGym, on two pages."""
    need(browser(), "Chromium and the extra `web`: tests/services/chromium.sh")
    monkeypatch.setattr(web, "PEER", tmp_path)
    monkeypatch.setattr(web, "PAGES", ("click-button", "enter-text"))


def test_resets_and_steps_are_timed_apart() -> None:
    facts = web.side_by_side(1)
    assert facts["reset_ratio"] is None and facts["step_ratio"] is None
    assert all(facts[f"{name}_p50_ms"] > 0 for name in ("reset", "first_reset", "step"))


def test_the_first_of_several_episodes_is_the_one_that_loads() -> None:
    times = web.Times()
    times.add([{"reset_s": 5.0, "steps_s": [1.0, 3.0]}, {"reset_s": 2.0, "steps_s": [2.0]}])
    assert times.facts("x_") == {"x_reset_p50_ms": 2000, "x_first_reset_p50_ms": 5000, "x_step_p50_ms": 2000}


def test_pages_start_and_agree() -> None:
    assert web.sweep(["click-button", "book-flight"]) == 2
    assert web.determinism(["click-button", "book-flight"]) == {
        "pages_played_twice": 1,
        "pages_that_agree": 1,
    }


def test_pictures_memory_and_growth() -> None:
    facts = web.pictures(1) | web.memory(1) | web.growth(3)
    assert facts["screenshot_p50_ms"] > 0 and facts["live_episodes"] == 2
    assert facts["browser_mb_with_one"] > 50 and facts["mb_at_the_end"] > 50


def test_a_snapshot_is_played_again() -> None:
    facts = web.restores(1)
    assert facts["restored_actions"] == 7 and facts["restore_p50_ms"] > 0
