"""Repeated calls go on after a failure and end when told."""

from __future__ import annotations

import threading
import time

import pytest

from palestra.envs.sandbox.timer import Repeat


def test_calls_are_repeated_until_stopped(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []
    enough = threading.Event()

    def call() -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            enough.set()
        if len(calls) == 1:
            raise OSError("not this time")

    repeat = Repeat(call, 0.01)
    assert enough.wait(10)
    repeat.stop()
    repeat.stop()
    count = len(calls)
    time.sleep(0.05)
    assert len(calls) == count
    assert "not this time" in caplog.text
