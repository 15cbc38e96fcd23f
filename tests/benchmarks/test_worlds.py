"""benchmarks/worlds.py prints what it promises."""

from __future__ import annotations

import json
import sys

import pytest

import search_worlds
import worlds


@pytest.mark.slow
def test_the_figures_of_a_quick_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["worlds.py", "--quick", "--json", "--repeats", "1", "--only", "sql"])
    worlds.main()
    found = json.loads(capsys.readouterr().out)
    assert found["sql_rows"] == worlds.QUICK_ROWS
    assert all(found[name] > 0 for name in ("sql_step_p50_ms", "sql_scan_p50_ms", "snapshot_p50_ms"))


@pytest.mark.slow
def test_the_figures_of_searching(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_worlds, "QUICK_PASSAGES", 4000)
    monkeypatch.setattr(search_worlds, "QUICK_LARGE", 4000)
    monkeypatch.setattr(search_worlds, "VOCABULARY", 2000)
    monkeypatch.setattr(sys, "argv", ["worlds.py", "--quick", "--json", "--repeats", "1", "--only", "search"])
    worlds.main()
    found = json.loads(capsys.readouterr().out)
    assert found["search_passages"] == found["search_large_passages"] == 4000
    names = (
        "index_s",
        "search_step_p50_ms",
        "search_snapshot_p50_ms",
        "search_large_p50_ms",
        "search_peak_gb",
    )
    assert all(found[name] > 0 for name in names)
