"""palestra/ScienceWorld-v0: its texts, and the end of its simulator; tests/conformance plays it."""

from __future__ import annotations

import gc

import pytest

from palestra.envs import scienceworld_env
from palestra.envs.scienceworld_env import ScienceWorldEnv, steady
from small_worlds import small_tasks

SEEN = """This room is called the art studio. In it, you see:
\ta table. On the table is: a bowl (containing a red apple, a banana).
\tthe agent
You also see:
\tA door to the kitchen (that is open)
\tA door to the hallway (that is open)"""


def test_lists_are_sorted_each_by_itself() -> None:
    assert steady(SEEN).splitlines()[1:] == [
        "\ta table. On the table is: a bowl (containing a banana, a red apple).",
        "\tthe agent",
        "You also see:",
        "\tA door to the hallway (that is open)",
        "\tA door to the kitchen (that is open)",
    ]


def test_what_is_steady_stays() -> None:
    assert (
        steady(steady(SEEN)) == steady(SEEN)
        and steady("You move to the kitchen.") == "You move to the kitchen."
    )


def test_a_simulator_whose_process_is_gone_ends_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings are errors here, those of finalizers too."""
    tasks = small_tasks("palestra/ScienceWorld-v0", "")
    monkeypatch.setattr(scienceworld_env, "_MAX_IDLE", 0)
    env = ScienceWorldEnv(tasks)
    env.reset(seed=0)
    process = env._program._gateway.java_process
    process.kill()
    process.wait()
    env.close()
    gc.collect()  # the simulator's finalizer ends it once more
    assert process.stdin.closed
