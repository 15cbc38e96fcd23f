"""Where a model is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from palestra.harness_proxy.errors import ModelNotFoundError
from palestra.harness_proxy.models import FILES, model_dir


def test_a_directory_is_itself_and_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Qwen" / "Qwen3-0.6B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert model_dir("Qwen/Qwen3-0.6B", _fail) == Path("Qwen/Qwen3-0.6B")


def test_a_name_is_fetched_from_the_hub_without_other_formats(tmp_path: Path) -> None:
    asked: list[Any] = []

    def download(name: str, **options: Any) -> str:
        asked.append((name, options))
        return str(tmp_path)

    assert model_dir("Qwen/Qwen3-0.6B", download) == tmp_path
    assert asked == [("Qwen/Qwen3-0.6B", {"allow_patterns": list(FILES)})]


def test_without_a_network_it_says_so() -> None:
    with pytest.raises(
        ModelNotFoundError, match=r"a/b is no directory, and .* hub did not give it \(no route\)"
    ):
        model_dir("a/b", _fail)


@pytest.mark.parametrize("name", ["runs/demo/warm", "./model", "model", "/data/model"])
def test_a_path_is_not_looked_for_on_the_hub(name: str) -> None:
    with pytest.raises(ModelNotFoundError, match="is no directory$"):
        model_dir(name, lambda *_, **__: pytest.fail("asked the hub"))


def _fail(name: str, **_: Any) -> str:
    raise OSError("no route\nto anywhere")
