"""What a missing service means, at home and on CI."""

from __future__ import annotations

import pytest

from needs import need


def test_a_service_that_is_there_lets_the_test_go_on() -> None:
    need("/usr/bin/docker", "docker")


def test_at_home_a_missing_service_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="missing: docker"):
        need(None, "docker")


def test_on_ci_a_missing_service_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="missing on CI: docker"):
        need(None, "docker")
