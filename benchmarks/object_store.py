"""A real S3 server for the benchmarks: SeaweedFS from its wheel, on a directory of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from benchmarks.servers import free_port
from dsec_blocks.gateways.objects import Bucket, Credentials, ObjectStoreError

KEY, SECRET = "dsec-bench", "not-a-secret"


@dataclass(frozen=True, kw_only=True)
class ObjectStore:
    """A running server, reachable at `endpoint_url` (or through a proxy at another one)."""

    endpoint_url: str

    def at(self, endpoint_url: str | None = None) -> Credentials:
        """Credentials for the server, or for it behind `endpoint_url`."""
        return Credentials(endpoint_url=endpoint_url or self.endpoint_url, access_key_id=KEY, secret_access_key=SECRET)

    def bucket(self, name: str) -> Bucket:
        """The bucket, made if it is not there."""
        bucket = Bucket(name, self.at())
        deadline = time.monotonic() + 60
        while True:
            try:
                bucket.client.create_bucket(Bucket=name)
            except ClientError as error:
                if "BucketAlready" not in str(error):
                    raise
            try:
                bucket.client.put_object(Bucket=name, Key="warm", Body=b"x")
                return bucket
            except (ClientError, BotoCoreError, ObjectStoreError):
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


@contextmanager
def object_store(directory: Path) -> Iterator[ObjectStore]:
    """Start, wait until it stores, and stop."""
    ports = {name: free_port() for name in ("master", "volume", "filer", "s3", "gm", "gv", "gf", "gs")}
    identity = {"name": "bench", "credentials": [{"accessKey": KEY, "secretKey": SECRET}]}
    config = {"identities": [{**identity, "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}
    (directory / "s3.json").write_text(json.dumps(config))
    (directory / "master.toml").write_text("[master.volume_growth]\ncopy_1 = 2\n")
    command = [
        str(Path(sys.executable).with_name("weed")), "server", f"-dir={directory}", "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.config={directory}/s3.json", "-master.volumeSizeLimitMB=1024",
        "-volume.max=100", "-s3.port.iceberg=0", "-s3.port.lance=0",
        f"-master.port={ports['master']}", f"-master.port.grpc={ports['gm']}", f"-volume.port={ports['volume']}",
        f"-volume.port.grpc={ports['gv']}", f"-filer.port={ports['filer']}", f"-filer.port.grpc={ports['gf']}",
        f"-s3.port={ports['s3']}", f"-s3.port.grpc={ports['gs']}",
    ]  # fmt: skip
    log = (directory / "weed.log").open("wb")
    server = subprocess.Popen(
        command, cwd=directory, stdout=log, stderr=log, env={**os.environ, "HOME": str(directory)}
    )
    store = ObjectStore(endpoint_url=f"http://127.0.0.1:{ports['s3']}")
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                store.bucket("ready-check")
                break
            except (BotoCoreError, ClientError):
                if server.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.3)
        yield store
    finally:
        server.kill()
        server.wait()
