"""A policy from demonstrations: what is read, what is learned, and that it is not done twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from palestra.harness_proxy.rendering import Rendering
from palestra.tasks.registry import load_tasks
from palestra.tasks.sql.vocabulary import WORDS
from palestra.training.apprentice import Teacher, learned
from palestra.training.demonstrations import CarelessAgent
from palestra.training.policy import Policy
from palestra.training.warmstart import WarmStart
from palestra.trajectories.store import Store


@pytest.fixture
def teacher() -> Teacher:
    return Teacher(
        CarelessAgent(0.0, 0).play, list(load_tasks("sql-tiny", "train"))[:4], seed=0, concurrency=2
    )


async def test_texts_have_the_question_and_the_replies(teacher: Teacher) -> None:
    done: list[int] = []
    texts = await teacher.texts(on_done=lambda: done.append(1))
    assert len(texts) == len(done) == 4
    asked = {next(t.id for t in teacher.tasks if t.instruction in text) for text in texts}
    assert asked == {t.id for t in teacher.tasks} and all('"name": "submit"' in text for text in texts)


async def test_demonstrations_go_into_a_store(teacher: Teacher, tmp_path: Path) -> None:
    await learned(tmp_path, teacher, lambda _: WORDS, WarmStart(steps=1), hidden=16, layers=1)
    with Store.open(tmp_path / "store", write=True) as store:
        shown = await teacher.show(Rendering.load(tmp_path / "model"), teacher.tasks[:2], store=store)
        assert set(store.ids(run_id="demonstrations")) == {t.rollout.rollout_id for t in shown}
    assert [t.rollout.reward for t in shown] == [1.0, 1.0]


async def test_what_was_learned_is_found_again(teacher: Teacher, tmp_path: Path) -> None:
    losses: list[float] = []
    config = WarmStart(steps=3, batch_size=2)

    def told(_: int, loss: float) -> None:
        losses.append(loss)

    warm = await learned(tmp_path, teacher, lambda _: WORDS, config, hidden=16, layers=1, on_step=told)
    assert len(losses) == 3 and losses[-1] < losses[0]
    model = Policy.load(warm)
    again = await learned(tmp_path, teacher, lambda _: WORDS, config, hidden=99, on_step=told)
    assert again == warm and len(losses) == 3 and Policy.load(again).num_parameters == model.num_parameters
