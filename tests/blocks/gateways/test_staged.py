"""A file that many connections write at once."""

import os
import threading
from pathlib import Path

import pytest

from dsec_blocks.gateways.staged import StagedFile


def test_writers_of_one_file_do_not_meet_in_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty-two of them spun on the file's lock: a fetch over a far connection took twice the processor time."""
    meeting, met = threading.Barrier(2), []
    pwrite = os.pwrite

    def write(descriptor: int, data: memoryview, offset: int) -> int:
        try:
            meeting.wait(0.3)
            met.append(offset)
        except threading.BrokenBarrierError:
            pass
        return pwrite(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    file = StagedFile(tmp_path / "staged", 8, at="test.create")
    parts = [(b"abcd", 0), (b"efgh", 4)]
    writers = [
        threading.Thread(target=file.write, args=(memoryview(data), offset), kwargs={"at": "test.write"})
        for data, offset in parts
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
    file.close()
    assert (tmp_path / "staged").read_bytes() == b"abcdefgh" and not met
