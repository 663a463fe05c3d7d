"""From an address to the origin that understands it."""

import hashlib
import os
from dataclasses import dataclass, field

from dsec_blocks.cache.errors import UnknownOrigin
from dsec_blocks.cache.origins import aws
from dsec_blocks.cache.origins.hub import DEFAULT_ENDPOINT, HubOrigin, split_hub
from dsec_blocks.cache.origins.manifests import PREFIX, ManifestOrigin
from dsec_blocks.cache.origins.objects import Origin
from dsec_blocks.cache.origins.paths import PathOrigin
from dsec_blocks.cache.origins.s3 import S3Origin, located
from dsec_blocks.cache.origins.web import WebOrigin
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.gateways.objects import Credentials


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
    """The origin of `s3://…`, `http(s)://…`, `hf://…`, `file:///…`, an absolute path, or one behind `manifest+`.

    Raises `UnknownOrigin` for anything else; touches nothing yet.
    """
    chosen = credentials or OriginCredentials()
    if uri.startswith(PREFIX):
        return ManifestOrigin(origin_for(uri.removeprefix(PREFIX), credentials))
    if uri.startswith(("file:///", "/")):
        return PathOrigin()
    if uri.startswith("s3://"):
        located(uri)
        return S3Origin(
            Credentials(
                endpoint_url=chosen.endpoint_url,
                region=chosen.region,
                access_key_id=chosen.access_key_id,
                secret_access_key=chosen.secret_access_key,
            ),
            clock=SystemClock(),
        )
    if uri.startswith(("http://", "https://")):
        return WebOrigin(dict(chosen.http_headers))
    if uri.startswith("hf://"):
        split_hub(uri)
        return HubOrigin(
            endpoint=chosen.hub_endpoint or os.environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT,
            token=chosen.hub_token or os.environ.get("HF_TOKEN"),
        )
    raise UnknownOrigin(
        f"{uri!r} is no address of data; write s3://bucket/prefix, hf://owner/name@revision, https://host/file, "
        "file:///path or an absolute path"
    )


def identity_of(credentials: OriginCredentials) -> str:
    """Who asks an origin, as a name that gives no secret away: equal means the same rights there."""
    parts = [
        credentials.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", ""),
        *([credentials.access_key_id] if credentials.access_key_id else aws.caller(os.environ)),
        credentials.hub_endpoint or os.environ.get("HF_ENDPOINT", ""),
        credentials.hub_token or os.environ.get("HF_TOKEN", ""),
        *(f"{name}={value}" for name, value in credentials.http_headers),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
