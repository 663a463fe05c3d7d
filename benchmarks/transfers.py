"""One transfer of a bundle in a process of its own, by one of the contenders; prints its figures as JSON.

    python -m benchmarks.transfers '{"who": "dsec", "endpoint": …, "bucket": …, "into": …, …}'

All end with the same promise kept, each file hashed (blake3), fsynced and renamed into place; `raw` alone hashes
nothing: it is what this machine can write at all.
"""

import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blake3 import blake3

from benchmarks.object_store import KEY, SECRET
from dsec_blocks.cache.origins import RemoteObject
from dsec_blocks.cache.origins.s3 import S3Origin
from dsec_blocks.cache.transfer import TransferSettings, fetch
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.gateways.objects import Credentials
from dsec_blocks.gateways.staged import StagedFile

MIB = 2**20
_AHEAD_BYTES = 128 * MIB
"""Of the memory held: free before it is needed, and for less than the two seconds."""


def origin(task: dict[str, Any]) -> S3Origin:
    credentials = Credentials(endpoint_url=task["endpoint"], access_key_id=KEY, secret_access_key=SECRET)
    return S3Origin(credentials, clock=SystemClock())


def dsec(task: dict[str, Any]) -> dict[str, float]:
    """What the cache does."""
    source, into = origin(task), Path(task["into"])
    counter = _counter(into)
    arrived = [0]

    def count(size: int) -> None:
        arrived[0] += size
        counter[:8] = arrived[0].to_bytes(8, "little")

    settings = TransferSettings(connections=task.get("connections"), memory_bytes=task["memory_bytes"])
    got = fetch(source.list(task["uri"]), origin=source, staging=into, settings=settings, progress=count)
    for one in got:
        os.replace(one.path, into / one.item.path)
    _sync(into)
    return {"fetched_bytes": sum(one.fetched_bytes for one in got)}


def raw(task: dict[str, Any]) -> dict[str, float]:
    """The same ranged GETs on as many connections, written the same way; nothing hashed."""
    source, into = origin(task), Path(task["into"])
    is_written = task["who"] == "raw"
    items = source.list(task["uri"])
    files = {
        item.path: StagedFile(into / f"{item.path}.part", item.size_bytes, at="bench.raw.create") for item in items
    }
    part = task["part_mib"] * MIB
    ranges = [(item, start) for item in items for start in range(0, item.size_bytes, part)]
    local = threading.local()

    def bring(job: tuple[RemoteObject, int]) -> None:
        item, start = job
        if not hasattr(local, "buffer"):
            local.buffer = memoryview(bytearray(2 * MIB))
        position = start
        length = min(part, item.size_bytes - start)
        for piece in source.read(item, start=start, length=length, buffer=local.buffer):
            if is_written:
                files[item.path].write(piece, position, at="bench.raw.write")
            position += len(piece)

    with ThreadPoolExecutor(task["connections"]) as pool:
        list(pool.map(bring, ranges))
    for name, file in files.items():
        file.sync(at="bench.raw.sync")
        file.close()
        os.replace(into / f"{name}.part", into / name)
    _sync(into)
    return {}


def boto3_verified(task: dict[str, Any]) -> dict[str, float]:
    """`download_file` with its own settings, read back to hash, fsynced, renamed; several files at once."""
    import boto3
    from boto3.s3.transfer import TransferConfig
    from botocore.config import Config

    threads, part, at_once = task["threads"], task["part_mib"] * MIB, task["files_at_once"]
    client = boto3.client(
        "s3",
        endpoint_url=task["endpoint"],
        region_name="us-east-1",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        config=Config(
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            max_pool_connections=threads * at_once + 4,
        ),
    )
    settings = TransferConfig(
        multipart_threshold=part, multipart_chunksize=part, max_concurrency=threads, io_chunksize=4 * MIB
    )
    bucket, prefix = task["uri"].removeprefix("s3://").split("/", 1)
    into = Path(task["into"])
    listed = client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/")["Contents"]

    def bring(entry: dict[str, Any]) -> str:
        name = entry["Key"].removeprefix(f"{prefix}/")
        path = into / f"{name}.part"
        client.download_file(bucket, entry["Key"], str(path), Config=settings)
        digest = blake3()
        with path.open("rb") as file:
            buffer = memoryview(bytearray(4 * MIB))
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
            os.fsync(file.fileno())
        os.replace(path, into / name)
        return str(digest.hexdigest())

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(bring, sorted(listed, key=lambda entry: -entry["Size"])))
    _sync(into)
    return {}


CONTENDERS = {"dsec": dsec, "raw": raw, "unwritten": raw, "boto3": boto3_verified}


def main() -> None:
    task = json.loads(sys.argv[1])
    Path(task["into"]).mkdir(parents=True, exist_ok=True)
    import boto3  # noqa: F401 - all contenders begin with it imported

    with _memory_at_hand(Path(task["into"]), task["page_cache_mib"] * MIB):
        before_mib = _peak_mib()
        cpu, started = time.process_time(), time.perf_counter()
        figures = CONTENDERS[task["who"]](task)
        seconds = time.perf_counter() - started
    rss = _peak_mib()
    print(
        json.dumps(
            {"seconds": seconds, "cpu_seconds": time.process_time() - cpu, "rss_mib": rss, "rss_before_mib": before_mib}
            | figures
        )
    )


@contextmanager
def _memory_at_hand(into: Path, size: int) -> Iterator[None]:
    """Have the machine the memory that the page cache will need, and let go of it as it is needed.

    A virtual machine gives back to its host what has been free for two seconds, and gets it again page by page: several
    times what the write costs, for whoever comes after one that wrote nothing, or takes longer than that.
    """
    path, piece, is_over = into / "memory", bytes(MIB), threading.Event()
    with path.open("wb", buffering=0) as file:
        for _ in range(size // MIB):
            file.write(piece)
        before = _written()

        def let_go() -> None:
            left = size
            while left and not is_over.wait(0.02):
                left = max(0, min(left, size - (_written() - before) - _AHEAD_BYTES))
                file.truncate(left)

        thread = threading.Thread(target=let_go)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            path.unlink()


def _written() -> int:
    """Bytes that this process has written so far."""
    return int(Path("/proc/self/io").read_text().partition("wchar:")[2].split()[0])


def _peak_mib() -> float:
    """The most memory this program had; getrusage would count what its parent had before it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def _counter(into: Path) -> mmap.mmap:
    """Eight bytes that survive a kill: how much arrived."""
    path = into / "arrived"
    path.write_bytes(bytes(8))
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 8)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


if __name__ == "__main__":
    main()
