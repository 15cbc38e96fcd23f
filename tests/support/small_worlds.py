"""Small task sets of worlds that take long to make, and what these worlds need."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
from typing import Any

from needs import need
from palestra.tasks.registry import load_tasks
from palestra.tasks.task import TaskSet

SMALL = {
    "palestra/TextWorld-v0": "textworld?train=2&dev=0&test=0&level=2",
    "palestra/ScienceWorld-v0": "scienceworld?task=find-non-living-thing&simplify=easy&per_task=1&turns=20",
    "palestra/Gymnasium-v0": "frozen-lake?train=16&dev=0&test=0",
}
PACKAGES = {"palestra/TextWorld-v0": "textworld", "palestra/ScienceWorld-v0": "scienceworld"}


@functools.cache
def small_tasks(env_id: str, default: str) -> TaskSet:
    """Few tasks for `env_id`; the default set where they are cheap. Skips what cannot run here."""
    if package := PACKAGES.get(env_id):
        need(importlib.util.find_spec(package), f"{package}: pip install 'palestra[worlds]'")
    if "Search" in env_id:
        need(importlib.util.find_spec("bm25s"), "bm25s: pip install 'palestra[search]'")
    if env_id == "palestra/ScienceWorld-v0":
        need(shutil.which("java"), "java: run tests/services/java.sh")
        os.environ.setdefault(
            "JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
        )  # it starts sooner
    return load_tasks(SMALL.get(env_id, default))


def options(env_id: str) -> dict[str, Any]:
    """How to make it in a test."""
    import palestra.envs

    return {"tasks": small_tasks(env_id, palestra.envs.ENVS[env_id][1])}
