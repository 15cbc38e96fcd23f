"""`palestra harness`: what is there, what is missing, a check, and a session that is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from palestra.rollouts.harnesses.recipes import recipes
from palestra.trajectories.store import Store

Command = Callable[..., Any]


def test_the_list_names_every_recipe(palestra: Command) -> None:
    ended = palestra("harness", "list")
    assert ended.status == 0
    assert all(name in ended.out for name in recipes())


def test_a_harness_that_is_missing_says_what_to_type(
    palestra: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PALESTRA_HARNESSES", str(tmp_path))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    ended = palestra("harness", "check", "codex")
    assert ended.status == 2 and ended.err.count("\n") == 1
    assert "palestra harness install codex" in ended.err
    assert f"npm install --no-audit --no-fund --loglevel=error --prefix {tmp_path}/codex" in ended.err


def test_an_unknown_harness_is_answered_with_those_that_there_are(palestra: Command) -> None:
    ended = palestra("harness", "install", "clippy")
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert "no harness 'clippy'; there are codex, claude-code, pi" in ended.err


def test_an_install_that_is_there_is_left_alone(palestra: Command) -> None:
    ended = palestra("harness", "install", "openai-sdk")
    assert ended.status == 0 and ended.out.startswith("openai-sdk ")


def test_a_check_says_what_it_saw(palestra: Command) -> None:
    ended = palestra("harness", "check", "openai-sdk", "--no-isolation")
    assert ended.status == 0, ended
    assert "0 differ from what the engine was given and gave" in ended.out
    assert "1 branch" in ended.out and ended.out.endswith("faithful\n")


def test_a_session_is_kept(palestra: Command, make_model: Command, tmp_path: Path) -> None:
    run = ("harness", "run", "openai-sdk", "Say something.", "--no-isolation", "--max-reply-tokens", "8")
    ended = palestra(*run, "--model", make_model(0), "--run-dir", tmp_path / "run")
    assert ended.status == 0, ended
    with Store.open(tmp_path / "run" / "store") as store:
        (rollout,) = store.rollouts()
        sampled = sum(len(node.logprobs) for node in store.get(rollout.rollout_id).nodes)
    assert 1 <= sampled <= 8, "a model with random weights may end its reply early"
    assert f"recorded 1 calls, {sampled} sampled tokens" in ended.err
    assert (rollout.rollout_id, rollout.harness, rollout.mode) == ("openai-sdk-1", "openai-sdk", "eval")
    assert "Say something." in palestra("show", tmp_path / "run", "openai-sdk-1").out
