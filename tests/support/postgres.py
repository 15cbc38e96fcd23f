"""The PostgreSQL server that tests/services/postgresql.sh starts."""

from __future__ import annotations

import importlib.util
import os
import socket
from pathlib import Path

import pytest

from needs import need

NOTE = Path(__file__).resolve().parents[2] / ".cache" / "postgresql" / "socket"


def use_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the backend at the tests' server. Skips without one."""
    need(importlib.util.find_spec("psycopg"), "psycopg: pip install 'palestra[sql]'")
    if "PALESTRA_POSTGRES" not in os.environ:
        need(_answers(), "PostgreSQL: run tests/services/postgresql.sh")
        monkeypatch.setenv("PALESTRA_POSTGRES", f"host={NOTE.read_text().strip()} user=postgres")


def _answers() -> bool:
    if not NOTE.exists():
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(f"{NOTE.read_text().strip()}/.s.PGSQL.5432") == 0
