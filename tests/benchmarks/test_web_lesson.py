"""The pages on which a small policy learns to click: what it reads, who shows it, and what is counted."""

from __future__ import annotations

from pathlib import Path

import pytest

import web_learning
import web_lesson
from browsers import browser
from learning import Budget, Run
from needs import need
from palestra.rollouts.loop import run
from palestra.training.apprentice import Teacher, learned
from palestra.training.warmstart import WarmStart

TEXT = """Click on the "a" button.
[1] text "one, two"
  [12] button "a \\"b\\"" focused
text "no"
[3] tab collapsed"""


@pytest.mark.xdist_group("palestra/Web-v0")
@pytest.mark.parametrize("care", [1.0, 0.0])
def test_demonstrations_solve_pages_as_often_as_they_take_care(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, care: float
) -> None:
    need(browser(), "Chromium and the extra `web`: tests/services/chromium.sh")
    monkeypatch.setattr(web_lesson, "CARE", care)
    tasks = list(web_lesson.load().split("test"))[: len(web_lesson.PAGES)]
    teacher = Teacher(web_lesson.Guide(0).play, tasks, 0, 4)
    model = tmp_path / "model"
    warm = run(learned(tmp_path, teacher, web_lesson.words, WarmStart(steps=1), hidden=16, layers=1))
    from palestra.harness_proxy.rendering import Rendering

    played = run(teacher.show(Rendering.load(model)))
    scores = [t.rollout.score.value if t.rollout.score else None for t in played]
    assert all(t.rollout.failure is None for t in played) and (warm / "model.safetensors").exists()
    assert scores == [1.0] * len(tasks) if care else sum(s or 0 for s in scores) < len(tasks)


def test_what_is_looked_at_is_not_learned_on() -> None:
    need(browser(), "Chromium and the extra `web`: tests/services/chromium.sh")
    tasks = web_lesson.load()
    seeds = {t.split: {of.data["seed"] for of in tasks.split(t.split)} for t in (tasks[0], tasks[-1])}
    assert len(seeds["train"]) == 2000 and len(seeds["test"]) == 200 and not seeds["train"] & seeds["test"]


def test_an_observation_is_read() -> None:
    goal, view = web_lesson.seen(TEXT)
    assert goal == 'Click on the "a" button.'
    assert [(e.depth, e.id, e.role, e.name, e.states) for e in view.elements] == [
        (0, 1, "text", "one, two", ()),
        (1, 12, "button", 'a "b"', ("focused",)),
        (0, 3, "tab", "", ("collapsed",)),
    ]


def test_words_are_those_of_names() -> None:
    assert web_lesson.words([TEXT, TEXT.replace("two", "too"), TEXT]) == ["one"]


def test_the_curve_is_over_seeds() -> None:
    runs = [Run("gigpo", 0, [0.2, 0.4, 0.8], 1.5), Run("gigpo", 1, [0.4, 0.6, 1.0], 1.0)]
    found = web_learning.figures(runs, Budget(4, 2, 3, look_every=2, looked_at=5))
    assert list(found["looks"]) == ["step 0", "step 2", "step 4"]
    assert [round(look[0], 3) for look in found["looks"].values()] == [0.3, 0.5, 0.9]
    assert found["gain"] == pytest.approx((0.6, 0.6, 0.6)) and found["episodes_trained_on"] == 24
