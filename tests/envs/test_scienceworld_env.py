"""palestra/ScienceWorld-v0: what does not need the simulator; tests/conformance plays it."""

from __future__ import annotations

from palestra.envs.scienceworld_env import steady

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
