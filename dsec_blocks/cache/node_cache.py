"""The NodeCache block: how each node keeps models and data sets, filled in once in the Prefect UI."""

import asyncio
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, SecretStr, field_validator, model_validator

from dsec_blocks.cache.acquiring import Cache
from dsec_blocks.cache.errors import CacheError, InvalidCacheSetting, OriginRefused, OriginUnreachable
from dsec_blocks.cache.eviction import DEFAULT_POLICY
from dsec_blocks.cache.lease import Lease
from dsec_blocks.cache.opening import open_cache
from dsec_blocks.cache.origins import OriginCredentials
from dsec_blocks.cache.settings import DEFAULT_TTL_SECONDS, CacheSettings, Revalidate, parse_size
from dsec_blocks.cache.site import Site
from dsec_blocks.cache.store import Limits
from dsec_blocks.cache.store.layout import Layout
from dsec_blocks.cache.store.store import DEFAULT_FREE_INODES
from dsec_blocks.cache.transfer.settings import TransferSettings
from dsec_blocks.gateways.objects import Bucket, Credentials, ObjectStoreError
from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.units import parse_duration

BLOCK_TYPE_SLUG = "dsec-node-cache"


class NodeCache(Block):
    """A cache of models and data sets on each node.

    Saving the block tests it: sizes and policy make sense, the directory can be written (where it is on this machine),
    and the bucket lets these credentials in.
    """

    _block_type_name = "DSec Node Cache"
    _block_type_slug = BLOCK_TYPE_SLUG
    _logo_url: ClassVar[HttpUrl | None] = HttpUrl(
        "https://raw.githubusercontent.com/PrefectHQ/prefect/420d0d6a78bb6df1fc18bcf188fdad43c1d22ea9/assets/"
        "block-logos/filesystem.png"
    )
    _description = "Keeps models and data sets on each node, so that a job starts on data that is already there."
    _code_example = """
    ```python
    from dsec_blocks import NodeCache

    cache = NodeCache.load("node")
    with cache.acquire("s3://models/llama-3-8b", include=["*.safetensors", "*.json"]) as bundle:
        serve(bundle.path)  # stays where it is until the end of the `with`
    ```"""

    directory: str = Field(
        title="Directory",
        description="Where each node keeps the data: an absolute path on a local disk.",
        examples=["/var/lib/dsec/cache"],
    )
    limit: str | None = Field(
        default=None,
        title="Size limit",
        description="The most that the cache may take, with a unit. Empty: all of the disk but the free space below.",
        examples=["500GiB"],
    )
    free_space: str = Field(
        default="2GiB",
        title="Free space to leave",
        description="The disk keeps at least this much free, whoever uses it.",
        examples=["50GiB"],
    )
    free_inodes: int = Field(
        default=DEFAULT_FREE_INODES,
        ge=0,
        title="Free inodes to leave",
        description="The same for the number of files, where the file system counts them.",
    )
    policy: Literal["s3-fifo", "gdsf", "freq-size", "lru", "fifo"] = Field(
        default=DEFAULT_POLICY,  # type: ignore[arg-type]
        title="Eviction policy",
        description="Which bundle leaves when room is needed: s3-fifo keeps what is used again, gdsf weighs the "
        "seconds of a refetch, freq-size weighs frequency × size, lru and fifo are for comparison.",
    )
    revalidate: Literal["always", "ttl", "never"] = Field(
        default="ttl",
        title="Compare with the origin",
        description="At every use, when the last comparison is older than the time below, or never again. An address "
        "that names a commit is never compared.",
    )
    ttl: str = Field(
        default=f"{DEFAULT_TTL_SECONDS:g}s",
        title="Trust a comparison for",
        description="Only for 'ttl'.",
        examples=["5min", "1h"],
    )
    bucket: str | None = Field(
        default=None,
        title="Bucket",
        description="s3://bucket/prefix that saving the block tests these credentials against.",
        examples=["s3://models/"],
    )
    endpoint_url: str | None = Field(
        default=None,
        title="S3 endpoint",
        description="URL of an S3-compatible store; empty for AWS.",
        examples=["https://s3.internal:9000"],
    )
    region: str | None = Field(default=None, title="S3 region", description="Empty: what the environment says.")
    access_key_id: SecretStr | None = Field(
        default=None, title="S3 access key", description="Empty: the environment, a profile or the node's role."
    )
    secret_access_key: SecretStr | None = Field(
        default=None, title="S3 secret key", description="Belongs to the access key."
    )
    hub_token: SecretStr | None = Field(
        default=None, title="Model hub token", description="For hf:// addresses; empty: HF_TOKEN of the environment."
    )
    connections: int | None = Field(
        default=None,
        ge=1,
        title="Connections",
        description="Ranges fetched side by side. Empty: chosen by the latency that is measured.",
    )
    memory: str = Field(
        default="64MiB", title="Transfer memory", description="All buffers of one fetch together.", examples=["256MiB"]
    )
    bandwidth: str | None = Field(
        default=None,
        title="Bandwidth cap",
        description="The most that one fetch may take, a second. Empty: no cap.",
        examples=["200MB/s"],
    )

    cluster: str | None = Field(
        default=None,
        title="Cluster store",
        description="s3://bucket/prefix near the nodes that they share: each object is then read from its origin once. "
        "Empty: each node asks the origin.",
        examples=["s3://cluster-cache/models"],
    )
    cluster_endpoint_url: str | None = Field(
        default=None, title="Cluster store: endpoint", description="URL of its S3 interface; empty for AWS."
    )
    cluster_access_key_id: SecretStr | None = Field(
        default=None, title="Cluster store: access key", description="Empty: what the environment says."
    )
    cluster_secret_access_key: SecretStr | None = Field(
        default=None, title="Cluster store: secret key", description="Belongs to the access key."
    )
    cluster_limit: str | None = Field(
        default=None,
        title="Cluster store: size limit",
        description="Above 95 % of it, what was used longest ago is removed. Empty: a rule of the store sees to that.",
        examples=["10TiB"],
    )

    @field_validator("directory")
    @classmethod
    def _is_absolute(cls, value: str) -> str:
        if not value.startswith("/"):
            raise ValueError("write an absolute path: each node's processes start in a directory of their own")
        if ".." in Path(value).parts:
            raise ValueError("write the path without '..'")
        return value

    @field_validator("bucket", "cluster")
    @classmethod
    def _is_a_bucket(cls, value: str | None) -> str | None:
        if value is not None and (urlsplit(value).scheme != "s3" or not urlsplit(value).netloc):
            raise ValueError("write s3://bucket/prefix")
        return value

    @model_validator(mode="after")
    def _makes_sense(self) -> "NodeCache":
        try:
            self.settings()
            self.site()
        except CacheError as error:
            raise ValueError(str(error)) from None
        return self

    def settings(self) -> CacheSettings:
        """What it takes to open the cache without Prefect. Raises `InvalidCacheSetting`."""
        try:
            ttl_seconds = parse_duration(self.ttl, field="ttl")
        except InvalidRequest as error:
            raise InvalidCacheSetting(str(error)) from None
        connections = {} if self.connections is None else {"max_connections": max(32, self.connections)}
        return CacheSettings(
            directory=Path(self.directory),
            limits=Limits(
                limit_bytes=None if self.limit is None else parse_size(self.limit, field_name="limit"),
                free_bytes=parse_size(self.free_space, field_name="free_space"),
                free_inodes=self.free_inodes,
            ),
            policy=self.policy,
            revalidate=Revalidate(self.revalidate),
            ttl_seconds=ttl_seconds,
            credentials=OriginCredentials(
                endpoint_url=self.endpoint_url,
                region=self.region,
                access_key_id=_secret(self.access_key_id),
                secret_access_key=_secret(self.secret_access_key),
                hub_token=_secret(self.hub_token),
            ),
            transfer=TransferSettings(
                connections=self.connections,
                memory_bytes=parse_size(self.memory, field_name="memory"),
                bandwidth_bytes_per_second=None
                if self.bandwidth is None
                else float(parse_size(self.bandwidth.removesuffix("/s"), field_name="bandwidth")),
                **connections,
            ),
        )

    def site(self) -> Site | None:
        """The store that the nodes share, None without one. Raises `InvalidCacheSetting`."""
        if self.cluster is None:
            return None
        return Site(
            url=self.cluster,
            endpoint_url=self.cluster_endpoint_url,
            access_key_id=_secret(self.cluster_access_key_id),
            secret_access_key=_secret(self.cluster_secret_access_key),
            limit_bytes=None
            if self.cluster_limit is None
            else parse_size(self.cluster_limit, field_name="cluster_limit"),
        )

    def open(self) -> Cache:
        """The cache of this node; touches nothing yet."""
        return open_cache(self.settings(), cluster=self.site())

    def acquire(self, uri: str, **options: Any) -> Lease:
        """The bundle at `uri`, on this node and held until the lease is released: see `Cache.acquire`."""
        return self.open().acquire(uri, **options)

    def check(self) -> None:
        """Prove that the cache can work. Raises a `CacheError` that says what cannot."""
        settings = self.settings()
        if settings.directory.parent.is_dir():  # else it is on the nodes only, and they will tell
            Layout(settings.directory).prepare()
        if self.bucket is not None:
            _reach(self.bucket, settings.credentials)
        site = self.site()
        if site is not None:
            keys = OriginCredentials(
                endpoint_url=site.endpoint_url,
                access_key_id=site.access_key_id,
                secret_access_key=site.secret_access_key,
            )
            _reach(site.url, keys)

    def save(self, name: str | None = None, overwrite: bool = False, client: Any = None) -> Any:
        """Test the cache, then save the block."""
        self.check()
        return super().save(name, overwrite=overwrite, client=client)

    async def asave(self, name: str | None = None, overwrite: bool = False, client: Any = None) -> Any:
        """Test the cache, then save the block."""
        await asyncio.to_thread(self.check)
        return await super().asave(name, overwrite=overwrite, client=client)


def _reach(location: str, credentials: OriginCredentials) -> None:
    parts = urlsplit(location)
    bucket = Bucket(
        parts.netloc,
        Credentials(
            endpoint_url=credentials.endpoint_url,
            region=credentials.region,
            access_key_id=credentials.access_key_id,
            secret_access_key=credentials.secret_access_key,
        ),
    )
    try:
        next(iter(bucket.keys(parts.path.lstrip("/"))), None)
    except ObjectStoreError as error:
        refused = any(word in str(error) for word in ("AccessDenied", "InvalidAccessKeyId", "Forbidden", "Signature"))
        if refused:
            raise OriginRefused(f"{location}: the store refuses these credentials; look at the access key") from error
        raise OriginUnreachable(f"{location} cannot be listed: {error}") from error


def _secret(value: SecretStr | None) -> str | None:
    return value.get_secret_value() if value is not None else None
