"""The kubelet's HTTPS end point as far as the API server uses it for `pods/log`."""

import asyncio
import datetime
import ssl
from collections.abc import Callable
from pathlib import Path

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.fakes.kubelet.container import Container

FindContainer = Callable[[str, str, str], Container | None]
"""By namespace, pod and container."""
_FOLLOW_SECONDS = 0.05
_UNSUPPORTED = ("timestamps", "sinceSeconds", "sinceTime")


def application(find: FindContainer) -> web.Application:
    """Serves `/containerLogs/NAMESPACE/POD/CONTAINER`; lines have no times, so nothing can be asked by time."""

    async def answer(request: web.Request) -> web.StreamResponse:
        where = request.match_info
        container = find(where["namespace"], where["pod"], where["container"])
        if container is None:
            raise web.HTTPNotFound(text=f"pod {where['pod']} is not on this node\n")
        asked = request.query
        if any(asked.get(name) not in (None, "false") for name in _UNSUPPORTED):
            raise web.HTTPBadRequest(text="process nodes write logs without times\n")
        log = container.log(previous=asked.get("previous") == "true")
        if not log.exists():
            text = f'container "{container.name}" in pod "{where["pod"]}" is waiting to start\n'
            raise web.HTTPBadRequest(text=text)
        response = web.StreamResponse()
        response.content_type = "text/plain"
        await response.prepare(request)
        content = log.read_bytes()
        position = len(content)
        if "tailLines" in asked:
            count = int(asked["tailLines"])
            content = b"".join(content.splitlines(keepends=True)[-count:]) if count else b""
        if "limitBytes" in asked:
            content = content[: int(asked["limitBytes"])]
        await response.write(content)
        while asked.get("follow") == "true":
            was_running = container.pid is not None and container.log() == log
            with log.open("rb") as file:
                file.seek(position)
                more = file.read()
            position += len(more)
            if more:
                await response.write(more)
            if not was_running:
                break
            await asyncio.sleep(_FOLLOW_SECONDS)
        return response

    served = web.Application()
    served.router.add_get("/containerLogs/{namespace}/{pod}/{container}", answer)
    return served


def self_signed(folder: Path) -> ssl.SSLContext:
    """A certificate as a kubelet makes it when nobody gave it one."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "process-node")])
    today = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=365))
        .sign(key, hashes.SHA256())
    )
    place = folder / "kubelet.pem"
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    place.touch(mode=0o600)
    place.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(place)
    return context
