"""The file-system gateway: durable writes, publishes and removals, each at a named fault point.

A file is durable when it *and* the directory entry that names it were fsynced; everything here does both.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from dsec_blocks.gateways.faults import fault_point


def write(path: Path, content: bytes | Iterable[bytes], *, at: str, mode: int = 0o644) -> None:
    """Make `path` hold `content`, whole or not at all: temporary file, fsync, rename, fsync of the directory."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    with fault_point(at):
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                _fill(file, content)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_directory(path.parent)


def publish(path: Path, content: bytes | Iterable[bytes], *, at: str) -> None:
    """Create `path` with `content`, only if it does not exist: the file system's compare-and-set.

    Raises `FileExistsError` when somebody else published first.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    with fault_point(at):
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
                _fill(file, content)
            os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_directory(path.parent)


def announce(path: Path, content: bytes, *, at: str) -> None:
    """Make `path` hold `content`, whole or not at all, for as long as this boot lasts: no fsync.

    For what names a process, and so means nothing after the machine went down.
    """
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    with fault_point(at):
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
                file.write(content)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def link(source: Path, target: Path, *, at: str) -> None:
    """Give the file a second name; durable once the caller has synced the directory.

    Raises `FileExistsError`, `FileNotFoundError`, and `OSError` (EMLINK) when the file has all the names it can have.
    """
    with fault_point(at):
        os.link(source, target)


def seal(path: Path, *, at: str) -> None:
    """Make the content durable and take the permission to write away."""
    with fault_point(at):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.fchmod(descriptor, 0o444)
        finally:
            os.close(descriptor)


def rename(source: Path, target: Path, *, at: str) -> None:
    """Move `source` to `target` on the same file system, replacing it, durably. Afterwards there is no `source`."""
    with fault_point(at):
        if _are_one_file(source, target):  # of two names of one file rename(2) leaves both
            source.unlink()
        else:
            os.replace(source, target)
        sync_directory(target.parent)


def append(path: Path, line: bytes, *, at: str) -> None:
    """Add one line to a log that must survive the death of the process, not of the machine: no fsync."""
    with fault_point(at):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def remove(path: Path, *, at: str) -> None:
    """Remove a file; one that is already gone is fine."""
    with fault_point(at):
        path.unlink(missing_ok=True)


def remove_tree(path: Path, *, at: str) -> None:
    """Remove a directory and all in it; one that is already gone is fine."""
    with fault_point(at):
        shutil.rmtree(path, ignore_errors=True)


def make_directory(path: Path) -> None:
    """Make a directory and those above it, durably; one that exists is fine."""
    missing = [path, *path.parents]
    missing = [level for level in missing if not level.is_dir()]
    path.mkdir(parents=True, exist_ok=True)
    for level in reversed(missing):
        sync_directory(level.parent)


def remove_empty(path: Path) -> bool:
    """Remove a directory that holds nothing; False when it does hold something (or is gone)."""
    try:
        path.rmdir()
    except OSError:
        return False
    return True


def sync(path: Path) -> None:
    """Make a file's content durable, whoever wrote it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(directory: Path) -> None:
    """Make the directory's entries durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _are_one_file(source: Path, target: Path) -> bool:
    try:
        return source.samefile(target)
    except FileNotFoundError:
        return False


def _fill(file: BinaryIO, content: bytes | Iterable[bytes]) -> None:
    chunks = [content] if isinstance(content, (bytes, bytearray, memoryview)) else content
    for chunk in chunks:
        file.write(chunk)
    file.flush()
    os.fsync(file.fileno())
