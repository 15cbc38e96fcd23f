"""A household in ALFWorld's layout: its own rules and words, which its package carries along, and a problem of ours."""

from __future__ import annotations

import json
from pathlib import Path

PROBLEM = """(define (problem put_mug_on_shelf)
 (:domain alfred)
 (:objects
  agent1 - agent
  loc_bar_0 loc_bar_1 loc_bar_2 - location
  Cabinet_bar__plus_00_dot_10 Shelf_bar__minus_01_dot_20 - receptacle
  Mug_bar__plus_00_dot_30 Mug_bar__plus_00_dot_40 Apple_bar__plus_00_dot_50 - object
  CabinetType ShelfType SinkBasinType MicrowaveType FridgeType - rtype
  MugType AppleType KnifeType ButterKnifeType DeskLampType - otype)
 (:init
  (atLocation agent1 loc_bar_0)
  (receptacleAtLocation Cabinet_bar__plus_00_dot_10 loc_bar_1)
  (receptacleAtLocation Shelf_bar__minus_01_dot_20 loc_bar_2)
  (receptacleType Cabinet_bar__plus_00_dot_10 CabinetType)
  (receptacleType Shelf_bar__minus_01_dot_20 ShelfType)
  (canContain CabinetType MugType) (canContain ShelfType MugType) (canContain ShelfType AppleType)
  (openable Cabinet_bar__plus_00_dot_10)
  (objectType Mug_bar__plus_00_dot_30 MugType) (objectType Mug_bar__plus_00_dot_40 MugType)
  (objectType Apple_bar__plus_00_dot_50 AppleType)
  (pickupable Mug_bar__plus_00_dot_30) (pickupable Mug_bar__plus_00_dot_40)
  (pickupable Apple_bar__plus_00_dot_50)
  (inReceptacle Mug_bar__plus_00_dot_30 Cabinet_bar__plus_00_dot_10)
  (inReceptacle Mug_bar__plus_00_dot_40 Cabinet_bar__plus_00_dot_10)
  (inReceptacle Apple_bar__plus_00_dot_50 Shelf_bar__minus_01_dot_20))
 (:goal (exists (?r - receptacle) (exists (?o - object)
  (and (inReceptacle ?o ?r) (objectType ?o MugType) (receptacleType ?r ShelfType)))))
 (:metric minimize (total-cost)))
"""
TASK = "put a mug in shelf."


def household(root: Path, name: str = "pick_and_place_simple-Mug-None-Shelf-1", **fields: object) -> Path:
    """root/json_2.1.1/valid_seen/<name>/trial_T1/game.tw-pddl; `fields` take the place of its own."""
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    trial = root / "json_2.1.1" / "valid_seen" / name / "trial_T1"
    trial.mkdir(parents=True)
    game = {
        "pddl_domain": Path(ALFRED_PDDL_PATH).read_text(),
        "grammar": Path(ALFRED_TWL2_PATH).read_text().replace("UNKNOWN GOAL", TASK.rstrip(".")),
        "pddl_problem": PROBLEM,
        "solvable": True,
        "walkthrough": None,
    }
    (trial / "game.tw-pddl").write_text(json.dumps(game | fields))
    (trial / "traj_data.json").write_text(json.dumps({"task_type": name.partition("-")[0]}))
    return root / "json_2.1.1" / "valid_seen"
