"""The cluster level of an installation, for processes that nobody tells: a file in the home that only its user reads.

It is read without opening anything: what a cluster level needs (the ledger, a store's client) is loaded by whoever has
to fetch, and a start on data that is already there does not.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsec_blocks.cache.errors import InvalidCacheSetting
from dsec_blocks.gateways import files
from dsec_blocks.gateways.home import known_ledger_url

if TYPE_CHECKING:
    from dsec_blocks.cache.cluster_level import ClusterAddress

FILE = "cluster-cache.json"


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where the store is that the cluster's nodes share, and how full it may get."""

    url: str
    """`s3://bucket/prefix`."""
    endpoint_url: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    limit_bytes: int | None = None
    ledger_url: str | None = None
    """None: what the environment says; where that says nothing, a process adds nothing to the store."""

    def address(self, environment: Mapping[str, str] = os.environ) -> "ClusterAddress":
        """What `open_cache` takes."""
        from dsec_blocks.cache.cluster_level import ClusterAddress

        return ClusterAddress(
            url=self.url,
            ledger_url=self.ledger_url or known_ledger_url(environment),
            endpoint_url=self.endpoint_url,
            region=self.region,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
            limit_bytes=self.limit_bytes,
        )


def read_site(home: Path) -> Site | None:
    """The installation's cluster level, None if it has none. Raises `InvalidCacheSetting` for a damaged file."""
    path = home / FILE
    try:
        told: dict[str, Any] = json.loads(path.read_bytes())
        return Site(**told)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise InvalidCacheSetting(f"{path} says where the cluster's cache is and cannot be read: {error}") from error


def write_site(home: Path, site: Site) -> None:
    """Make it the installation's cluster level."""
    text = json.dumps({name: value for name, value in vars(site).items() if value is not None}, indent=1)
    files.write(home / FILE, text.encode(), at="up.cluster_cache.write", mode=0o600)


def remove_site(home: Path) -> None:
    """The installation has no cluster level any more."""
    files.remove(home / FILE, at="up.cluster_cache.remove")
