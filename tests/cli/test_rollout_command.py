"""`palestra rollout`, `palestra eval` and `palestra show`, with an engine behind an address and without."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from needs import need
from palestra.envs.sandbox import images
from palestra.rollouts.harnesses.recipes import recipes, register
from palestra.trajectories.store import Store
from small_agent import SmallAgent

Command = Callable[..., Any]
MakeTask = Callable[..., dict[str, Any]]
Options = tuple[str | Path, ...]

FEW = ("--limit", "2", "--max-reply-tokens", "4")


def test_it_plays_shows_and_continues(palestra: Command, served: Options, tmp_path: Path) -> None:
    first = palestra("rollout", "sql-tiny", *served, "--run-dir", "r", *FEW, "--samples", "2")
    assert (first.status, first.err) == (0, "")
    assert "pass@1" in first.out and "pass@2" in first.out and "palestra show r --run rollouts" in first.out
    with Store.open(tmp_path / "r" / "store") as store:
        played = store.ids()
    assert len(played) == 4

    again = palestra("rollout", "sql-tiny", *served, "--run-dir", "r", *FEW, "--samples", "2")
    assert again.status == 0 and "continuing run rollouts: 4 rollouts are there" in again.out

    more = palestra("rollout", "sql-tiny", *served, "--run-dir", "r", *FEW, "--samples", "3")
    assert more.status == 0
    with Store.open(tmp_path / "r" / "store") as store:
        assert len(store) == 6 and store.ids()[:4] == played


def test_show_lists_and_shows_one(palestra: Command, served: Options, model: Path) -> None:
    palestra("rollout", "sql-tiny", *served, "--run-dir", "r", *FEW)
    listed = palestra("show", "r", "--limit", "1")
    assert listed.status == 0 and "2 rollouts, the last 1 shown" in listed.out
    assert listed.out.count("rollouts/sql-tiny/test/0000/") == 1
    one = palestra("show", "r", "rollouts/sql-tiny/test/0000/total/0", "--model", model)
    assert one.status == 0 and "<|im_start|>" in one.out and "step 0" in one.out


def test_compare_pairs_two_runs(palestra: Command, served: Options) -> None:
    for name, seed in (("one", "1"), ("two", "2")):
        ended = palestra(
            "eval", "run", "sql-tiny", *served, "--run-dir", "r", *FEW, "--run", name, "--seed", seed
        )
        assert ended.status == 0 and "pass@1" in ended.out
    compared = palestra("eval", "compare", "r:one", "r:two")
    assert compared.status == 0 and "+0.0 points" in compared.out and "of 2 tasks" in compared.out
    ambiguous = palestra("eval", "compare", "r", "r:two")
    assert ambiguous.status == 2 and "name one of: r:one, r:two" in ambiguous.err
    unknown = palestra("eval", "compare", "r:three", "r:two")
    assert unknown.status == 2 and "has no run 'three'" in unknown.err
    assert palestra("show", "r", "--run", "three").status == 2


@pytest.mark.e2e
def test_the_embedded_engine_says_what_its_server_says(
    palestra: Command, served: Options, model: Path, tmp_path: Path
) -> None:
    palestra("rollout", "sql-tiny", *served, "--run-dir", "remote", *FEW)
    assert palestra("rollout", "sql-tiny", "--model", model, "--run-dir", "embedded", *FEW).status == 0
    with (
        Store.open(tmp_path / "remote" / "store") as remote,
        Store.open(tmp_path / "embedded" / "store") as own,
    ):
        for rollout_id in own.ids():
            one, other = own.get(rollout_id), remote.get(rollout_id)
            assert [s.action for s in one.steps] == [s.action for s in other.steps]
            assert [n.token_ids.tolist() for n in one.nodes] == [n.token_ids.tolist() for n in other.nodes]
            for a, b in zip(one.nodes, other.nodes, strict=True):
                assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (("--temperature", "0.5"), "temperature 1.0 (now 0.5)"),
        (("--seed", "3"), "seed 0 (now 3)"),
        (("--max-reply-tokens", "5"), "max_reply_tokens 4 (now 5)"),
        (("--mode", "train"), "mode 'eval' (now 'train')"),
    ],
)
def test_a_run_is_not_continued_with_other_settings(
    palestra: Command, served: Options, change: Options, named: str
) -> None:
    base = ("rollout", "sql-tiny", *served, "--run-dir", "r", "--limit", "1", "--max-reply-tokens", "4")
    assert palestra(*base).status == 0
    ended = palestra(*base, *change)
    assert ended.status == 2 and named in ended.err and "another --run" in ended.err


def test_a_run_is_not_continued_with_another_model(
    palestra: Command, served: Options, make_model: Callable[..., Path]
) -> None:
    base = ("rollout", "sql-tiny", "--run-dir", "r", *FEW)
    assert palestra(*base, *served).status == 0
    ended = palestra(*base, *served, "--model", make_model(1))
    assert ended.status == 2 and "run 'rollouts' in r was begun with model" in ended.err


def test_a_model_that_moved_is_the_same_model(
    palestra: Command, served: Options, model: Path, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "moved")
    base = ("rollout", "sql-tiny", "--run-dir", "r", *FEW)
    assert palestra(*base, *served).status == palestra(*base, *served, "--model", "moved").status == 0


def test_a_run_of_unknown_settings_is_not_continued(
    palestra: Command, served: Options, tmp_path: Path
) -> None:
    base = ("rollout", "sql-tiny", *served, "--run-dir", "r", *FEW)
    palestra(*base)
    shutil.rmtree(tmp_path / "r" / "settings")
    ended = palestra(*base)
    assert ended.status == 2 and "settings that are not known" in ended.err


def test_failures_are_counted_apart_and_explained(
    palestra: Command, served: Options, make_task: MakeTask, tmp_path: Path
) -> None:
    broken = {"database": {"file": "gone.sqlite"}, "db_id": "x", "gold_sql": "SELECT 1"}
    lines = [make_task("sound"), make_task("broken", data=broken), make_task("lost", env="acme/World-v0")]
    (tmp_path / "mine.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))
    ended = palestra("rollout", "mine.jsonl", *served, "--run-dir", "r", "--samples", "2")
    assert ended.status == 0
    assert "4 of 6 rollouts failed and have no reward" in ended.out
    assert "2  env failed in reset: EnvSetupError: task 'broken'" in ended.out
    assert "2  env failed in setup" in ended.out
    with Store.open(tmp_path / "r" / "store") as store:
        rewards = {r.task_id: r.reward for r in store.rollouts()}
    assert rewards == {"sound": 0.0, "broken": None, "lost": None}


def test_a_run_in_which_all_failed_ends_with_status_1(
    palestra: Command, served: Options, make_task: MakeTask, tmp_path: Path
) -> None:
    (tmp_path / "mine.jsonl").write_bytes(orjson.dumps(make_task("lost", env="acme/World-v0")))
    for command in (("rollout",), ("eval", "run")):
        ended = palestra(*command, "mine.jsonl", *served, "--run-dir", "r")
        assert ended.status == 1 and ended.err == ""
        assert "1 of 1 rollouts failed" in ended.out and "env failed in setup" in ended.out


@pytest.mark.e2e
def test_ctrl_c_keeps_what_was_committed(
    start: Command, palestra: Command, served: Options, make_task: MakeTask, tmp_path: Path
) -> None:
    lines = [orjson.dumps(make_task(f"t{i}")) for i in range(6000)]
    (tmp_path / "mine.jsonl").write_bytes(b"\n".join(lines))
    base = ("rollout", "mine.jsonl", *served, "--run-dir", "r", "--max-reply-tokens", "4")
    process = start(*base, "--concurrency", "2")  # minutes, so that none of them ends before it is told to
    committed = _first_rollouts(tmp_path / "r" / "store")
    ended = process.interrupt()
    assert ended.status == 130
    assert ended.err == "interrupted; what was committed stays, the same command continues\n"
    with Store.open(tmp_path / "r" / "store") as store:
        kept = store.ids()
    assert kept[: len(committed)] == committed and len(kept) < len(lines)
    again = palestra(*base, "--limit", "1")
    assert again.status == 0 and f"{len(kept)} rollouts are there" in again.out


def _first_rollouts(path: Path) -> list[str]:
    """Wait until there are some."""
    while not (path / "index.sqlite").exists():
        time.sleep(0.05)
    with Store.open(path) as store:
        while not (ids := store.ids()):
            time.sleep(0.05)
    return ids


def test_an_unknown_harness_is_refused_before_anything_begins(
    palestra: Command, served: Options, tmp_path: Path
) -> None:
    for command in (("rollout",), ("eval", "run")):
        refused = palestra(*command, "sql-tiny", *served, "--run-dir", "r", *FEW, "--harness", "codec")
        assert refused.status == 2 and "there is no harness 'codec'; there are codex," in refused.err
    assert not (tmp_path / "r").exists()


def test_a_program_plays_and_its_run_is_not_continued_by_another(
    palestra: Command, served: Options, tmp_path: Path
) -> None:
    need(images.built("python"), "the sandbox image python: run tests/services/sandbox.sh as root")
    if SmallAgent.name not in recipes():
        register(SmallAgent())
    few = ("--limit", "1", "--max-reply-tokens", "4", "--run-dir", "r")
    played = palestra("eval", "run", "swe-tiny", *served, *few, "--harness", SmallAgent.name)
    assert (played.status, played.err) == (0, "")
    with Store.open(tmp_path / "r" / "store") as store:
        [trajectory] = [store.get(name) for name in store.ids()]
    assert (trajectory.rollout.harness, trajectory.rollout.reward) == (SmallAgent.name, 0.0)
    other = palestra("eval", "run", "swe-tiny", *served, *few)
    assert other.status == 2 and "was begun with harness 'small-agent'" in other.err
