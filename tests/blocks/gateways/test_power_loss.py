"""After a loss of power a file is there whole, old or new: what was not fsynced may be dropped, and in any order.

The calls that the gateway makes are recorded on a real file system. Then every crash is played on a model of a disk:
after each call, with any part of what no fsync had covered by then lost. A file's content is what its last fsync
saw, or torn; a directory's entries are those of its last fsync, and any of the later changes.
"""

import itertools
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.gateways import files

TORN = b"<torn>"
Entries = dict[str, int]


@dataclass
class Recorder:
    """The calls that change a disk, in their order, each as what it does to directory entries or makes durable."""

    root: Path
    calls: list[tuple[Any, ...]] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("open", "replace", "link", "unlink", "fsync"):
            monkeypatch.setattr(os, name, getattr(self, f"_{name}")(getattr(os, name)))

    def _open(self, real: Callable[..., int]) -> Callable[..., int]:
        def opened(path: Any, flags: int, *rest: Any, **more: Any) -> int:
            is_new = bool(flags & os.O_CREAT) and not Path(path).exists()
            descriptor = real(path, flags, *rest, **more)
            if is_new:
                self.calls.append(("set", str(path), os.fstat(descriptor).st_ino))
            return descriptor

        return opened

    def _replace(self, real: Callable[..., None]) -> Callable[..., None]:
        def replaced(source: Any, target: Any, **more: Any) -> None:
            number = Path(source).stat().st_ino
            real(source, target, **more)
            self.calls.append(("move", str(source), str(target), number))

        return replaced

    def _link(self, real: Callable[..., None]) -> Callable[..., None]:
        def linked(source: Any, target: Any, **more: Any) -> None:
            real(source, target, **more)
            self.calls.append(("set", str(target), Path(target).stat().st_ino))

        return linked

    def _unlink(self, real: Callable[..., None]) -> Callable[..., None]:
        def unlinked(path: Any, **more: Any) -> None:
            real(path, **more)
            self.calls.append(("drop", str(path)))

        return unlinked

    def _fsync(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def synced(descriptor: int) -> None:
            real(descriptor)
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                self.calls.append(("sync entries",))
            else:
                content = Path(f"/proc/self/fd/{descriptor}").read_bytes()
                self.calls.append(("sync content", found.st_ino, content))

        return synced


def after_power_loss(before: Entries, contents: dict[int, bytes], calls: list[tuple[Any, ...]]) -> Iterator[Entries]:
    """Every set of entries that may be found when the power goes after these calls; `contents` gets what is durable."""
    durable, pending = dict(before), list[tuple[Any, ...]]()
    for call in calls:
        if call[0] == "sync content":
            contents[call[1]] = call[2]
        elif call[0] == "sync entries":
            for change in pending:
                _apply(durable, change)
            pending = []
        else:
            pending.append(call)
    for kept in itertools.product((True, False), repeat=len(pending)):
        found = dict(durable)
        for change, is_kept in zip(pending, kept, strict=True):
            if is_kept:
                _apply(found, change)
        yield found


def _apply(entries: Entries, change: tuple[Any, ...]) -> None:
    match change:
        case ("set", name, number):
            entries[name] = number
        case ("move", source, target, number):
            entries.pop(source, None)
            entries[target] = number
        case ("drop", name):
            entries.pop(name, None)


def outcomes(
    directory: Path, path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]
) -> tuple[set[bytes | None], set[bytes | None]]:
    """What `path` may hold after a power loss at any moment of `act`, and after one once it has returned."""
    before = {str(entry): entry.stat().st_ino for entry in directory.iterdir()}
    held = {entry.stat().st_ino: entry.read_bytes() for entry in directory.iterdir()}
    recorder = Recorder(directory)
    with monkeypatch.context() as patched:
        recorder.install(patched)
        act()
    found: list[set[bytes | None]] = []
    for count in range(len(recorder.calls) + 1):
        contents, possible = dict(held), set[bytes | None]()
        for entries in after_power_loss(before, contents, recorder.calls[:count]):
            number = entries.get(str(path))
            possible.add(None if number is None else contents.get(number, TORN))
        found.append(possible)
    assert recorder.calls, "nothing was recorded"
    return set().union(*found), found[-1]


def test_a_written_file_is_old_or_new_and_new_once_the_call_has_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"old")
    ever, then = outcomes(tmp_path, path, monkeypatch, lambda: files.write(path, b"new", at="test.write"))
    assert ever == {b"old", b"new"}
    assert then == {b"new"}


def test_a_published_file_is_absent_or_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "first"
    ever, then = outcomes(tmp_path, path, monkeypatch, lambda: files.publish(path, b"mine", at="test.publish"))
    assert ever == {None, b"mine"}
    assert then == {b"mine"}


def test_a_renamed_file_is_under_one_of_its_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_bytes(b"content")
    target.write_bytes(b"replaced")
    ever, then = outcomes(tmp_path, target, monkeypatch, lambda: files.rename(source, target, at="test.rename"))
    assert ever == {b"replaced", b"content"}
    assert then == {b"content"}


@pytest.mark.parametrize("left_out", ["the content", "the directory"])
def test_a_gateway_that_forgot_an_fsync_would_be_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: str
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(b"old")

    def careless() -> None:
        temporary = tmp_path / "new"
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(b"new")
            file.flush()
            if left_out != "the content":
                os.fsync(file.fileno())
        os.replace(temporary, path)
        if left_out != "the directory":
            files.sync_directory(tmp_path)

    ever, then = outcomes(tmp_path, path, monkeypatch, careless)
    assert TORN in ever if left_out == "the content" else then == {b"old", b"new"}
