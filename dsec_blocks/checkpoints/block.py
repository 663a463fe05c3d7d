"""The CheckpointStore block: where checkpoints go, filled in once in the Prefect UI and named everywhere else."""

import asyncio
from typing import Any, ClassVar
from urllib.parse import urlsplit

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl, SecretStr, field_validator

from dsec_blocks.checkpoints.stores import BLOCK_TYPE_SLUG, DEFAULT_KEEP, StoreAddress, check, open_store
from dsec_blocks.model.errors import StoreUnusable


class CheckpointStore(Block):
    """A directory or an S3 bucket that keeps the checkpoints of runs.

    Saving the block tests the store: whoever cannot compare-and-set cannot keep two attempts of a run apart.
    """

    _block_type_name = "DSec Checkpoint Store"
    _block_type_slug = BLOCK_TYPE_SLUG
    _logo_url: ClassVar[HttpUrl | None] = HttpUrl(
        "https://raw.githubusercontent.com/PrefectHQ/prefect/420d0d6a78bb6df1fc18bcf188fdad43c1d22ea9/assets/"
        "block-logos/filesystem.png"
    )
    _description = "Keeps the checkpoints of gangs: on a file system, or in any S3-compatible store."
    _code_example = """
    ```python
    from dsec_blocks import run

    def train():  # a rank of current_gang().run(train)
        checkpoint = run.checkpoints("my-store")
        state = checkpoint.restore({"weights": initial_weights()})
        run.on_evict(lambda step: checkpoint.save(step, state))
        for step in run.steps(1000):
            state = update(state)
            if run.should_checkpoint():
                checkpoint.save(step + 1, state)
    ```"""

    location: str = Field(
        title="Location",
        description="A path, file:///path, or s3://bucket/prefix. A path must be reachable from every node.",
        examples=["s3://checkpoints/team-a", "/mnt/shared/checkpoints"],
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
    keep: int = Field(
        default=DEFAULT_KEEP,
        ge=1,
        title="Checkpoints to keep",
        description="Per run; the one that a running gang resumed from is kept besides.",
    )

    keep_every: int = Field(
        default=0,
        ge=0,
        title="Keep one of each N steps",
        description="Besides the newest, the first checkpoint of each N steps stays for good; 0 for none.",
    )

    @field_validator("location")
    @classmethod
    def _is_a_location(cls, value: str) -> str:
        if "://" not in value and not value.startswith("/"):
            raise ValueError("write an absolute path, file:///path, or s3://bucket/prefix")
        try:
            open_store(value)
        except StoreUnusable as error:
            raise ValueError(str(error)) from None
        return value

    def address(self) -> StoreAddress:
        """What it takes to open the store without Prefect."""
        named = open_store(self.location)
        return StoreAddress(
            url=named.url,
            endpoint_url=self.endpoint_url or named.endpoint_url,
            region=self.region or named.region,
            access_key_id=self.access_key_id.get_secret_value() if self.access_key_id else None,
            secret_access_key=self.secret_access_key.get_secret_value() if self.secret_access_key else None,
            keep=self.keep,
            keep_every=self.keep_every,
        )

    def check(self) -> None:
        """Prove that the store can compare-and-set. Raises `StoreUnusable` saying what it cannot."""
        check(self.address())

    def save(self, name: str | None = None, overwrite: bool = False, client: Any = None) -> Any:
        """Test the store, then save the block."""
        self.check()
        return super().save(name, overwrite=overwrite, client=client)

    async def asave(self, name: str | None = None, overwrite: bool = False, client: Any = None) -> Any:
        """Test the store, then save the block."""
        await asyncio.to_thread(self.check)
        return await super().asave(name, overwrite=overwrite, client=client)


def load_store(name: str) -> CheckpointStore:
    """The block document called `name` (or `dsec-checkpoint-store/NAME`).

    Raises `StoreUnusable` when there is none.
    """
    short = name.removeprefix(f"{BLOCK_TYPE_SLUG}/")
    if urlsplit(short).scheme:
        raise StoreUnusable(f"{name!r} is neither file:///path nor s3://bucket/prefix")
    try:
        return CheckpointStore.load(short)  # type: ignore[return-value]
    except ValueError as error:
        raise StoreUnusable(
            f"there is no checkpoint store called {short!r}: give a path, s3://bucket/prefix, or the name of a "
            f"CheckpointStore block ({error})"
        ) from error
