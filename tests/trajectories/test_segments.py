"""Frames are whole or not there, and damage is never taken for an end."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from palestra.trajectories.errors import CorruptError, EncodeError, SchemaError
from palestra.trajectories.segments import (
    FRAME_HEADER_BYTES,
    MAX_SEGMENT_BYTES,
    START,
    Frame,
    SegmentReader,
    SegmentWriter,
    scan,
    segment_path,
)

FILE_HEADER_BYTES = START - MAX_SEGMENT_BYTES


def write(directory: Path, payloads: list[bytes], *, segment_bytes: int = 1 << 20) -> list[Frame]:
    writer = SegmentWriter(directory, _end(directory), segment_bytes=segment_bytes, fsync=False)
    frames = [writer.append(1, payload) for payload in payloads]
    writer.close()
    return frames


def _end(directory: Path) -> int:
    end = START
    for frame in scan(directory, START):
        end = frame.end
    return end


def test_what_is_written_is_scanned_and_read(tmp_path: Path) -> None:
    frames = write(tmp_path, [b"one", b"", b"three" * 1000])
    assert list(scan(tmp_path, START)) == frames
    assert list(scan(tmp_path, frames[1].position)) == frames[1:]
    reader = SegmentReader(tmp_path)
    assert [reader.payload(f.position, len(f.payload)) for f in frames] == [b"one", b"", b"three" * 1000]
    assert reader.start_of_payload(frames[2].position, 4) == b"thre"
    reader.close()
    reader.close()


def test_an_empty_directory_has_no_frames(tmp_path: Path) -> None:
    assert list(scan(tmp_path, START)) == []


def test_a_segment_is_closed_before_it_passes_its_limit(tmp_path: Path) -> None:
    frames = write(tmp_path, [b"x" * 50] * 5 + [b"y" * 500] + [b"x"], segment_bytes=200)
    sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
    assert sizes == [148, 148, 82, 532, 33], "two fit; one larger than the limit lies alone"
    assert [f.position // MAX_SEGMENT_BYTES for f in frames] == [1, 1, 2, 2, 3, 4, 5]
    assert list(scan(tmp_path, START)) == frames


def test_many_segments_are_read_with_few_files_open(tmp_path: Path) -> None:
    frames = write(tmp_path, [bytes([n]) for n in range(100)], segment_bytes=20)
    reader = SegmentReader(tmp_path)
    for frame in frames + frames[::-1]:
        assert reader.payload(frame.position, 1) == frame.payload
    assert len(reader._files) == 64
    reader.close()


@pytest.mark.parametrize("segment_bytes", [0, -1, MAX_SEGMENT_BYTES])
def test_a_limit_that_cannot_be_kept_is_refused(tmp_path: Path, segment_bytes: int) -> None:
    with pytest.raises(ValueError, match=f"got {segment_bytes}"):
        SegmentWriter(tmp_path, START, segment_bytes=segment_bytes, fsync=False)


def test_a_payload_past_the_length_field_is_refused(tmp_path: Path) -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 32

    with pytest.raises(EncodeError, match="4 GiB"):
        write(tmp_path, [Huge()])


class TestAfterACrash:
    @settings(deadline=None, max_examples=20)
    @given(st.lists(st.binary(max_size=40), min_size=1, max_size=4))
    def test_a_last_frame_cut_at_any_byte_is_dropped_and_written_over(
        self, tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes]
    ) -> None:
        directory = tmp_path_factory.mktemp("segments")
        frames = write(directory, payloads)
        path, whole = segment_path(directory, 1), segment_path(directory, 1).read_bytes()
        start = frames[-1].position % MAX_SEGMENT_BYTES
        for length in range(start, len(whole)):
            path.write_bytes(whole[:length])
            assert list(scan(directory, START)) == frames[:-1]
            again = write(directory, [payloads[-1]])
            assert again == frames[-1:]
            assert path.read_bytes() == whole

    def test_the_writer_says_how_much_it_cut(self, tmp_path: Path) -> None:
        frames = write(tmp_path, [b"one", b"two"])
        path = segment_path(tmp_path, 1)
        path.write_bytes(path.read_bytes()[:-1])
        writer = SegmentWriter(tmp_path, frames[0].end, segment_bytes=1 << 20, fsync=False)
        assert writer.dropped_bytes == FRAME_HEADER_BYTES + 2
        writer.close()

    @pytest.mark.parametrize("length", range(FILE_HEADER_BYTES))
    def test_a_new_segment_without_its_header_is_begun_again(self, tmp_path: Path, length: int) -> None:
        frames = write(tmp_path, [b"one"])
        header = segment_path(tmp_path, 1).read_bytes()[:FILE_HEADER_BYTES]
        segment_path(tmp_path, 2).write_bytes(header[:length])
        assert list(scan(tmp_path, START)) == frames
        more = write(tmp_path, [b"two"])
        assert more[0].position == 2 * MAX_SEGMENT_BYTES + FILE_HEADER_BYTES
        assert list(scan(tmp_path, START)) == frames + more

    def test_zeros_that_a_loss_of_power_left_are_cut(self, tmp_path: Path) -> None:
        frames = write(tmp_path, [b"one"])
        with segment_path(tmp_path, 1).open("ab") as file:
            file.write(bytes(5000))
        assert list(scan(tmp_path, START)) == frames
        assert write(tmp_path, [b"two"])[0].position == frames[0].end


class TestDamage:
    def test_any_changed_byte_of_a_record_is_found(self, tmp_path: Path) -> None:
        frames = write(tmp_path, [b"one", b"two", b"three"])
        path, whole = segment_path(tmp_path, 1), segment_path(tmp_path, 1).read_bytes()
        reader = SegmentReader(tmp_path)
        begin, end = frames[1].position % MAX_SEGMENT_BYTES, frames[1].end % MAX_SEGMENT_BYTES
        for place in range(begin, end):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
            with pytest.raises(CorruptError, match=f"000001.seg is damaged at byte {begin}"):
                list(scan(tmp_path, START))
            with pytest.raises(CorruptError, match=f"000001.seg is damaged at byte {begin}"):
                reader.payload(frames[1].position, 3)
            assert reader.payload(frames[2].position, 5) == b"three"
        reader.close()

    def test_a_changed_byte_of_the_last_record_is_no_torn_tail(self, tmp_path: Path) -> None:
        write(tmp_path, [b"one", b"two"])
        path = segment_path(tmp_path, 1)
        path.write_bytes(path.read_bytes()[:-1] + b"O")
        with pytest.raises(CorruptError):
            list(scan(tmp_path, START))

    def test_a_record_cut_short_in_an_earlier_segment(self, tmp_path: Path) -> None:
        write(tmp_path, [b"one", b"two"], segment_bytes=20)
        path = segment_path(tmp_path, 1)
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(CorruptError, match=r"000001\.seg"):
            list(scan(tmp_path, START))

    def test_a_segment_that_is_gone(self, tmp_path: Path) -> None:
        frames = write(tmp_path, [b"one", b"two", b"three"], segment_bytes=20)
        segment_path(tmp_path, 2).unlink()
        with pytest.raises(CorruptError, match=r"000002\.seg is missing"):
            list(scan(tmp_path, START))
        for number in (1, 3):
            segment_path(tmp_path, number).unlink()
        with pytest.raises(CorruptError, match=r"000003\.seg is missing"):
            list(scan(tmp_path, frames[-1].end))

    def test_a_segment_shorter_than_what_is_known_of_it(self, tmp_path: Path) -> None:
        frames = write(tmp_path, [b"one", b"two"])
        with segment_path(tmp_path, 1).open("r+b") as file:
            file.truncate(frames[1].position % MAX_SEGMENT_BYTES)
        with pytest.raises(CorruptError, match="the end of the file is lost"):
            list(scan(tmp_path, frames[1].end))

    def test_another_file(self, tmp_path: Path) -> None:
        segment_path(tmp_path, 1).write_bytes(b"#!/bin/sh\n" * 10)
        with pytest.raises(CorruptError, match="does not begin as a segment"):
            list(scan(tmp_path, START))

    def test_a_newer_version(self, tmp_path: Path) -> None:
        write(tmp_path, [b"one"])
        whole = segment_path(tmp_path, 1).read_bytes()
        segment_path(tmp_path, 1).write_bytes(whole[:8] + b"\x02" + whole[9:])
        with pytest.raises(SchemaError, match="version 2"):
            list(scan(tmp_path, START))
