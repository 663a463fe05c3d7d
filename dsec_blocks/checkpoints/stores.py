"""Naming a store: a path, a URL or a block, opened the same way everywhere.

Ranks write to the node's spool and a separate process uploads, so a store must also travel: `StoreAddress` is all
that is needed to open it again without Prefect (whose server may be away just then).
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit
from uuid import uuid4

from dsec_blocks.checkpoints.places import Directory, Place, S3Prefix
from dsec_blocks.gateways.home import home_of
from dsec_blocks.gateways.objects import Bucket, Credentials, ObjectStoreError, OutcomeUnknown, PreconditionFailed
from dsec_blocks.model.errors import StoreUnusable
from dsec_blocks.model.names import ENV_STORE

DEFAULT_KEEP = 3
BLOCK_TYPE_SLUG = "dsec-checkpoint-store"


@dataclass(frozen=True, kw_only=True)
class StoreAddress:
    """Where a store is, how to reach it, and how many commits of a run it keeps."""

    url: str
    endpoint_url: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    keep: int = DEFAULT_KEEP
    keep_every: int = 0
    """Besides the newest, the first commit of each so many steps stays for good; 0: none."""

    def to_json(self) -> dict[str, Any]:
        """JSON-ready fields, the secret included: only for files that nobody else may read."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "StoreAddress":
        """The address that `to_json` wrote."""
        return cls(**fields)

    def open(self) -> Place:
        """The place itself; touches nothing yet."""
        parts = urlsplit(self.url)
        if parts.scheme == "file":
            return Directory(Path(parts.path))
        credentials = Credentials(
            endpoint_url=self.endpoint_url,
            region=self.region,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
        )
        return S3Prefix(Bucket(parts.netloc, credentials), parts.path)


def default_store() -> str:
    """Where checkpoints go when nobody says: below DSEC_HOME."""
    return f"file://{home_of() / 'checkpoints'}"


def open_store(name: "str | Path | StoreAddress | None" = None) -> StoreAddress:
    """The store called `name`: a path, `file:///…`, `s3://bucket/prefix?endpoint=…`, a `CheckpointStore` block or its
    document's name. None is the store in DSEC_STORE, else one below DSEC_HOME.

    Raises `StoreUnusable` for a name that is none of these.
    """
    if name is None:
        name = os.environ.get(ENV_STORE) or default_store()
    if isinstance(name, StoreAddress):
        return name
    if isinstance(name, Path):
        return StoreAddress(url=f"file://{name.absolute()}")
    if not isinstance(name, str):
        address = getattr(name, "address", None)
        if callable(address):
            opened: StoreAddress = address()
            return opened
        raise StoreUnusable(f"{name!r} names no checkpoint store; give a path, a URL or a CheckpointStore block")
    parts = urlsplit(name)
    if parts.scheme == "s3":
        return _s3_address(name)
    is_block = name.startswith(f"{BLOCK_TYPE_SLUG}/")
    if parts.scheme == "file" or ("/" in name and not is_block):
        if parts.scheme not in ("file", "") or parts.netloc:
            raise StoreUnusable(f"{name!r} is neither file:///path nor s3://bucket/prefix")
        return StoreAddress(url=f"file://{Path(parts.path).absolute()}")
    from dsec_blocks.checkpoints.block import load_store

    return load_store(name).address()


def check(address: StoreAddress) -> None:
    """Prove that the store can do what the commit protocol needs.

    Raises `StoreUnusable` saying what it cannot.
    """
    place = address.open()
    run = f"selftest-{uuid4().hex[:12]}"
    try:
        first = place.swap_head(run, None, {"commits": [], "test": 1})
        second = place.swap_head(run, None, {"commits": [], "test": 2})
        seen = place.head(run)
        swapped = place.swap_head(run, seen, {"commits": [], "test": 3})
        stale = place.swap_head(run, seen, {"commits": [], "test": 4})
        found = place.head(run)
        content = os.urandom(4096)
        place.put(f"ckpt/{run}/content", content, at="checkpoint.selftest.put")
        came_back = place.get(f"ckpt/{run}/content")
        for key in list(place.keys(f"ckpt/{run}")):
            place.remove(key, at="checkpoint.selftest.remove")
    except (PreconditionFailed, OutcomeUnknown, ObjectStoreError, OSError) as error:
        raise StoreUnusable(f"the checkpoint store {place.url} cannot be used: {error}") from error
    if not (first and swapped) or second or stale or found is None or found.fields["test"] != 3:
        raise StoreUnusable(
            f"the checkpoint store {place.url} ignores conditional writes (If-Match, If-None-Match), so a run that was "
            "believed dead could overwrite a newer checkpoint; use another store or a newer version of this one"
        )
    if came_back != content:
        raise StoreUnusable(
            f"the checkpoint store {place.url} does not give back what was put into it ({len(came_back)} bytes instead "
            f"of {len(content)}): something on the way changes bodies (chunk trailers are known for it)"
        )


def _s3_address(url: str) -> StoreAddress:
    parts = urlsplit(url)
    query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    unknown = set(query) - {"endpoint", "region", "keep", "keep_every"}
    if unknown or not parts.netloc:
        raise StoreUnusable(
            f"{url!r}: write s3://bucket/prefix, with ?endpoint=, &region=, &keep= and &keep_every= if needed"
        )
    keep = query.get("keep", str(DEFAULT_KEEP))
    if not keep.isdigit() or int(keep) < 1:
        raise StoreUnusable(f"{url!r}: keep={keep} is not a number of checkpoints (at least 1)")
    keep_every = query.get("keep_every", "0")
    if not keep_every.isdigit():
        raise StoreUnusable(f"{url!r}: keep_every={keep_every} is not a number of steps (0: none)")
    return StoreAddress(
        url=f"s3://{parts.netloc}{parts.path}",
        endpoint_url=query.get("endpoint"),
        region=query.get("region"),
        keep=int(keep),
        keep_every=int(keep_every),
    )
