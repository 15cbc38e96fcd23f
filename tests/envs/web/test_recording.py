"""Pictures, video and trace of an episode, and `render`."""

from __future__ import annotations

import logging
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from browsers import browser
from hostile_site import hostile_task
from needs import need
from palestra.envs.errors import SandboxError
from palestra.envs.web.env import WebEnv
from palestra.tasks.web.actions import act as call
from palestra.tasks.web.miniwob import make

TASK = make("click-button-sequence", "test", 1)
ONE, TWO = (call("click", target=f'button "{name}"') for name in ("ONE", "TWO"))


@pytest.fixture
def env(tmp_path: Path) -> Iterator[WebEnv]:
    """An environment that records into `tmp_path`."""
    need(browser(), "Chromium and the extra `web`: tests/services/chromium.sh")
    with closing(WebEnv(record=tmp_path / "films")) as env:
        yield env


def files(directory: Path) -> list[str]:
    return sorted(str(p.relative_to(directory)) for p in directory.rglob("*") if p.is_file())


def test_an_episode_has_pictures_a_video_and_a_trace(env: WebEnv, tmp_path: Path) -> None:
    from PIL import Image, ImageSequence

    env.reset(options={"task": TASK})
    env.step(ONE)
    assert env.step(TWO)[2]
    directory = tmp_path / "films" / f"{TASK.id.replace('/', '_')}-000"
    assert files(directory) == ["000.png", "001.png", "002.png", "trace.zip", "video.webp"]
    with Image.open(directory / "video.webp") as video:
        assert sum(1 for _ in ImageSequence.Iterator(video)) == 3
    with zipfile.ZipFile(directory / "trace.zip") as trace:
        assert "trace.trace" in trace.namelist() and b"mouse" in trace.read("trace.trace").lower()


def test_episodes_have_directories_of_their_own(env: WebEnv, tmp_path: Path) -> None:
    for _ in range(2):
        env.reset(options={"task": TASK})
    env.close()
    assert [f for f in files(tmp_path / "films") if f.endswith("zip")] == [
        f"miniwob_click-button-sequence_000001-{n:03d}/trace.zip" for n in range(2)
    ]


def test_a_recorded_episode_looks_as_any_other(env: WebEnv) -> None:
    with closing(WebEnv()) as plain:
        first = [e.reset(options={"task": TASK})[1]["state_digest"] for e in (env, plain)]
        second = [e.step(ONE)[4]["state_digest"] for e in (env, plain)]
    assert first[0] == first[1] and second[0] == second[1]


def test_of_a_browser_that_hangs_the_pictures_are_left(
    env: WebEnv, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env.reset(options={"task": hostile_task("<button onclick='while (true) {}'>x</button>", command_s=3)})
    with pytest.raises(SandboxError), caplog.at_level(logging.WARNING):
        env.step(call("click", target='button "x"'))
    env.reset(options={"task": TASK})
    assert {"000.png", "video.webp"} <= set(files(tmp_path / "films" / "hostile_1-000"))
    assert env.step(ONE)[1] == 0.0


def test_render_gives_the_window() -> None:
    need(browser(), "Chromium and the extra `web`: tests/services/chromium.sh")
    with closing(gymnasium.make("palestra/Web-v0", render_mode="rgb_array")) as env:
        env.reset(options={"task": TASK})
        picture = env.render()
        assert isinstance(picture, np.ndarray)
        assert picture.shape == (320, 332, 3) and picture.dtype == np.uint8 and picture.std() > 0
