"""An export is whole under its name or not there, and one that was interrupted goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from palestra.trajectories.errors import ExportError
from palestra.trajectories.exports import formats, sinks
from palestra.trajectories.exports.formats import FORMATS, Selection, export
from palestra.trajectories.exports.sinks import file_name
from palestra.trajectories.imports.atif import read_atif
from palestra.trajectories.store import Store

pq = pytest.importorskip("pyarrow.parquet")
COUNT = 7


class Interrupted(Exception):
    pass


@pytest.fixture
def store(tmp_path: Path, make_trajectory: Any) -> Any:
    with Store.open(tmp_path / "store", write=True) as opened:
        for i in range(COUNT):
            opened.append(make_trajectory(f"r/{i}"))
        yield opened


def stop_after(count: int) -> Callable[[], None]:
    left = iter(range(count))

    def advance() -> None:
        if next(left, None) is None:
            raise Interrupted

    return advance


def content(out: Path) -> dict[str, Any]:
    """What an export holds, whatever its files are."""
    if out.is_file():
        return {"lines": out.read_bytes()}
    files = {
        p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*.json") if p.name != "export.json"
    }
    tables = {d.name: pq.read_table(d).to_pylist() for d in out.iterdir() if d.is_dir()}
    return files | tables


@pytest.mark.parametrize("every", [1, 3, 256])
@pytest.mark.parametrize("name", FORMATS)
def test_an_interrupted_export_goes_on(
    name: str, every: int, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "EVERY_ROLLOUTS", every)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = export(store, name, whole)
    for count in (2, 3):
        with pytest.raises(Interrupted):
            export(store, name, broken, on_rollout=stop_after(count))
        assert not broken.is_file()
    assert export(store, name, broken) == expected
    assert content(broken) == content(whole)
    assert expected.rollouts == COUNT and expected.left_out == {}


def test_lines_after_the_last_checkpoint_are_dropped(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill: half a line is in the file."""
    monkeypatch.setattr(formats, "EVERY_ROLLOUTS", 2)
    out = tmp_path / "out.jsonl"
    with pytest.raises(Interrupted):
        export(store, "trl", out, on_rollout=stop_after(4))
    with out.with_name("out.jsonl.partial").open("ab") as file:
        file.write(b'{"prompt_ids": [1')
    export(store, "trl", out)
    assert [orjson.loads(line)["rollout_id"] for line in out.read_bytes().splitlines()] == store.ids()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.jsonl", "store"]


@pytest.mark.parametrize("name", ["atif", "parquet"])
def test_a_finished_directory_takes_what_was_recorded_since(
    name: str, store: Store, tmp_path: Path, make_trajectory: Any
) -> None:
    out, whole = tmp_path / "out", tmp_path / "whole"
    export(store, name, out)
    store.append(make_trajectory("later"))
    export(store, name, out)
    export(store, name, whole)
    assert content(out) == content(whole)
    assert orjson.loads((out / "export.json").read_bytes())["complete"] is True


def test_a_file_that_is_there_is_not_touched(store: Store, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    with pytest.raises(ExportError, match="exists already"):
        export(store, "trl", out)
    with pytest.raises(ExportError, match="no export"):
        export(store, "parquet", tmp_path)
    assert out.read_text() == "mine"


def test_other_options_do_not_continue_an_export(store: Store, tmp_path: Path) -> None:
    export(store, "atif", tmp_path / "out")
    with pytest.raises(ExportError, match="other options"):
        export(store, "atif", tmp_path / "out", Selection(mode="eval"))
    with pytest.raises(ExportError, match="no format 'csv'"):
        export(store, "csv", tmp_path / "other")


def test_a_damaged_state_is_said_to_be_one(store: Store, tmp_path: Path) -> None:
    (tmp_path / "o.partial.json").write_text("{")
    with pytest.raises(ExportError, match="delete it"):
        export(store, "trl", tmp_path / "o")


def test_what_was_left_out_is_counted(store: Store, tmp_path: Path, make_trajectory: Any) -> None:
    store.append(make_trajectory("e", mode="eval"))
    exported = export(store, "verl", tmp_path / "o", Selection(mode="train"))
    assert (exported.rollouts, exported.left_out) == (COUNT, {"mode eval": 1})


def test_parquet_tables_join(store: Store, tmp_path: Path) -> None:
    export(store, "parquet", tmp_path / "o")
    tables = {
        name: pq.read_table(tmp_path / "o" / name) for name in ("rollouts", "samples", "calls", "steps")
    }
    assert {name: table.num_rows for name, table in tables.items()} == {
        "rollouts": COUNT,
        "samples": COUNT,
        "calls": 2 * COUNT,
        "steps": 2 * COUNT,
    }
    row = tables["samples"].to_pylist()[0]
    lengths = {len(row[name]) for name in ("ids", "loss_mask", "logprobs", "calls", "versions", "steps")}
    assert len(lengths) == 1
    joined = {(c, s) for c, s, m in zip(row["calls"], row["steps"], row["loss_mask"], strict=True) if m}
    assert joined == {(0, 0), (1, 1)}


def test_a_part_is_written_before_memory_fills(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "_BUFFERED_TOKENS", 100)
    export(store, "parquet", tmp_path / "o")
    assert len(list((tmp_path / "o" / "samples").iterdir())) > 1


def test_documents_read_back(store: Store, tmp_path: Path) -> None:
    export(store, "atif", tmp_path / "o")
    trace = read_atif(tmp_path / "o" / file_name("r/1"))
    assert trace.session_id == "r/1" and [s.source for s in trace.steps] == ["user", "agent", "agent"]


def test_any_rollout_id_is_a_file_name() -> None:
    names = [file_name(i) for i in ("../../etc/passwd", "a" * 500, "a" * 501, "é\x00")]
    assert len(set(names)) == 4 and all("/" not in n and len(n) < 256 for n in names)
