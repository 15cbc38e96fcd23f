"""Who made what: labels that name a living process, so that what a dead one left can be told and removed."""

from __future__ import annotations

import os
from pathlib import Path


def label(pid: int | None = None) -> str:
    """A process's id and start time, "1234-567890": unlike the id alone, never used twice between boots."""
    pid = os.getpid() if pid is None else pid
    return f"{pid}-{_start_time(pid)}"


def alive(text: str) -> bool:
    """Whether the process of a label still runs."""
    pid, _, started = text.partition("-")
    try:
        return str(_start_time(int(pid))) == started
    except (OSError, ValueError):
        return False


def _start_time(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    if fields[0] == "Z":
        raise ProcessLookupError(f"process {pid} has ended")
    return int(fields[19])
