"""Blobs are what their name says, or an error."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from palestra.trajectories.blobs import Blobs
from palestra.trajectories.errors import CorruptError, NotFoundError
from palestra.trajectories.store import Store


@pytest.mark.parametrize("fsync", [False, True])
def test_a_blob_is_kept_once_under_its_digest(tmp_path: Path, fsync: bool) -> None:
    blobs = Blobs(tmp_path, fsync=fsync)
    sha256 = blobs.put(b"picture")
    assert sha256 == hashlib.sha256(b"picture").hexdigest() == blobs.put(b"picture")
    assert blobs.get(sha256) == b"picture"
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [sha256]
    assert blobs.get(blobs.put(b"")) == b""


def test_a_blob_that_was_changed_is_refused(tmp_path: Path) -> None:
    blobs = Blobs(tmp_path, fsync=False)
    sha256 = blobs.put(b"picture")
    (tmp_path / sha256[:2] / sha256).write_bytes(b"other")
    with pytest.raises(CorruptError, match=sha256):
        blobs.get(sha256)


def test_a_blob_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="there is no blob"):
        Blobs(tmp_path, fsync=False).get("0" * 64)


@pytest.mark.parametrize(
    "name", ["../secret", "", "A" * 64, "0" * 63 + "/", "0" * 64 + "\n", "../" * 20 + "etc/"]
)
def test_a_name_cannot_lead_out_of_the_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    with pytest.raises(NotFoundError, match="64 lower-case hex digits"):
        Blobs(tmp_path / "blobs", fsync=False).get(name)


def test_a_trajectory_brings_its_attachments(tmp_path: Path, make_trajectory: Any) -> None:
    sha256 = hashlib.sha256(b"image").hexdigest()
    with Store.open(tmp_path / "store", write=True) as store:
        store.append(replace(make_trajectory("r"), blobs={sha256: b"image"}))
        assert store.get_blob(sha256) == b"image" and not store.get("r").blobs
