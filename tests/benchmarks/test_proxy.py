"""benchmarks/proxy.py: it runs without litellm, and its figures are what they say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

import proxy
from needs import need
from proxy_load import Run, conversations

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "proxy.py"


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    need(shutil.which("cc"), "a C compiler (apt-get install gcc)")
    command = [sys.executable, str(SCRIPT), "--json", "--no-litellm", "--repeats", "1", "--talks", "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def test_all_figures_that_have_goals_are_there(result: dict[str, Any]) -> None:
    assert set(result["goals"]) <= set(result)
    assert all(result[name] > 0 for name in result["goals"] if "litellm" not in name)
    assert result["litellm_rps_ratio"] is None


def test_the_table_has_every_target_in_every_case(result: dict[str, Any]) -> None:
    cases = [f"c={c} {how}" for c in (1, 16) for how in ("whole", "stream")]
    assert set(result["table"]) == {f"{t} {c}" for t in ("direct", "bare", "lean", "palestra") for c in cases}


def test_requests_are_of_about_a_kilobyte_and_no_two_conversations_alike() -> None:
    talks = conversations("x" * 180, 20)
    sizes = [len(orjson.dumps(body)) for talk in talks for body in talk]
    assert 900 < sum(sizes) / len(sizes) < 1400
    assert len({orjson.dumps(talk) for talk in talks}) == 20


def test_figures_are_medians_of_pairs() -> None:
    rounds = {
        ("direct", 1, False): [Run(100, 0, 0, 0), Run(300, 0, 0, 0)],
        ("palestra", 1, False): [Run(500, 0, 0, 0), Run(500, 0, 0, 0)],
        ("litellm", 1, False): [Run(10_100, 0, 0, 0), Run(10_300, 0, 0, 0)],
        ("palestra", 16, False): [Run(0, 0, 4000, 250), Run(0, 0, 2000, 350)],
        ("bare", 16, False): [Run(0, 0, 9000, 100), Run(0, 0, 9000, 100)],
        ("lean", 16, False): [Run(0, 0, 9000, 200), Run(0, 0, 9000, 200)],
        ("litellm", 16, False): [Run(0, 0, 100, 9000), Run(0, 0, 100, 9000)],
        ("palestra", 1, True): [Run(600, 0, 0, 0), Run(600, 0, 0, 0)],
        ("direct", 1, True): [Run(100, 0, 0, 0), Run(100, 0, 0, 0)],
        ("palestra", 16, True): [Run(0, 0, 1500, 400), Run(0, 0, 1500, 400)],
    }
    figures = proxy.facts(rounds)
    assert figures["added_p50_ms"] == pytest.approx(0.3)
    assert figures["litellm_latency_ratio"] == pytest.approx(10 / 0.3)
    assert figures["litellm_rps_ratio"] == pytest.approx(30)
    assert figures["bare_cpu_ratio"] == pytest.approx(3)
    assert figures["lean_cpu_ratio"] == pytest.approx(1.5)
    assert (figures["rps_c16"], figures["cpu_us_per_request"]) == (3000, 300)
