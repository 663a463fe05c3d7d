"""Which cache an agent owns: the one that the command line and the environment describe, or a NodeCache block."""

from pathlib import Path

from dsec_blocks.cache import Cache, open_cache
from dsec_blocks.cache.errors import InvalidCacheSetting
from dsec_blocks.cache.settings import from_environment
from dsec_blocks.cache.site import read_site
from dsec_blocks.gateways.home import home_of


def cache_of(*, directory: Path | None, limit: str | None, block: str | None) -> Cache:
    """The cache, opened. Raises `InvalidCacheSetting`."""
    if block is None:
        return open_cache(from_environment(directory=directory, limit=limit), cluster=read_site(home_of()))
    if directory is not None or limit is not None:
        raise InvalidCacheSetting(f"--block {block} says where the cache is and how large; leave the other options out")
    from dsec_blocks import NodeCache

    try:
        found = NodeCache.load(block)
    except ValueError as error:
        raise InvalidCacheSetting(
            f"there is no NodeCache block {block!r} on the Prefect server (or it cannot be read: "
            f"{str(error).splitlines()[0]}); create it in the UI under Blocks"
        ) from error
    assert isinstance(found, NodeCache)
    return found.open()
