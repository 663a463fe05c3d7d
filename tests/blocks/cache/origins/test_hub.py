"""A hub that speaks the two calls: the tree of a revision, and where a file is."""

import hashlib
import json
import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.cache.errors import BundleMissing, ContentMismatch, OriginRefused, UnknownOrigin
from dsec_blocks.cache.origins import OriginCredentials, origin_for
from dsec_blocks.cache.origins.hub import split_hub
from dsec_blocks.cache.transfer import TransferSettings, fetch
from tests.fixtures.misbehaving import Exchange, MisbehavingOrigin

MIB = 2**20
CONFIG = b'{"hidden_size": 384}'


class Hub:
    """A hub on the test's server: large files are redirected to another address, as the real one does."""

    def __init__(self, server: MisbehavingOrigin) -> None:
        self.server = server
        self.weights = os.urandom(12 * MIB)
        self.token = "secret"
        self.tokens_at_storage: list[str | None] = []
        self.expired = 0
        self.folder: list[dict] = []
        """The tree below `onnx`."""
        server.files["storage/blob"] = self.weights
        server.files["owner/tiny/resolve/main/config.json"] = CONFIG
        server.tricks.append(self.answer)

    def tree(self) -> list[dict]:
        large = {"oid": hashlib.sha256(self.weights).hexdigest(), "size": 12 * MIB}
        blob = hashlib.sha1(f"blob {len(CONFIG)}\0".encode() + CONFIG).hexdigest()
        return [
            {"type": "directory", "path": "onnx", "oid": "0", "size": 0},
            {"type": "file", "path": "config.json", "size": len(CONFIG), "oid": blob},
            {"type": "file", "path": "model.safetensors", "size": 12 * MIB, "oid": "1", "lfs": large},
        ]

    def answer(self, exchange: Exchange) -> bool:
        path = urlsplit(exchange.path).path
        if path == "/storage/blob":
            self.tokens_at_storage.append(exchange.headers.get("Authorization"))
            if self.expired:
                self.expired -= 1
                exchange.say(403)
                return True
            return False
        if exchange.headers.get("Authorization") != f"Bearer {self.token}":
            exchange.say(401)
        elif path == "/api/models/owner/tiny/tree/main/onnx":
            exchange.say(200, json.dumps(self.folder).encode())
        elif path == "/api/models/owner/tiny/tree/main":
            pages = self.tree()
            is_second = "cursor" in exchange.path
            body = json.dumps(pages[1:] if is_second else pages[:1]).encode()
            more = {} if is_second else {"Link": f'<{self.server.url}{exchange.path}&cursor=2>; rel="next"'}
            exchange.say(200, body, **more)
        else:
            return False
        return True


@pytest.fixture
def hub(origin_server: MisbehavingOrigin, monkeypatch: pytest.MonkeyPatch) -> Hub:
    hub = Hub(origin_server)
    serve = Exchange.do_HEAD

    def head(exchange: Exchange) -> None:
        if exchange.path.endswith("resolve/main/model.safetensors"):
            exchange.send_response(302)
            # Another name of the same machine: a token must not follow.
            exchange.send_header("Location", f"http://localhost:{exchange.server.server_port}/storage/blob")
            exchange.send_header("Content-Length", "0")
            exchange.end_headers()
        else:
            serve(exchange)

    monkeypatch.setattr(Exchange, "do_HEAD", head)
    return hub


def opened(hub: Hub, token: str = "secret"):
    return origin_for("hf://owner/tiny", OriginCredentials(hub_endpoint=hub.server.url, hub_token=token))


def test_a_repository_is_fetched_whole_over_pages_and_redirects(hub: Hub, tmp_path: Path) -> None:
    origin = opened(hub)
    items = origin.list("hf://owner/tiny")
    got = fetch(items, origin=origin, staging=tmp_path, settings=TransferSettings(patience_seconds=5))
    assert {
        one.item.path: one.path.read_bytes() == want for one, want in zip(got, (CONFIG, hub.weights), strict=True)
    } == {
        "config.json": True,
        "model.safetensors": True,
    }
    assert {one.verified for one in got} == {"manifest"}
    assert set(hub.tokens_at_storage) == {None}


def test_what_the_tree_promises_is_compared_with_what_comes(hub: Hub, tmp_path: Path) -> None:
    origin = opened(hub)
    items = origin.list("hf://owner/tiny", include=["*.safetensors"])
    hub.server.files["storage/blob"] = os.urandom(12 * MIB)
    with pytest.raises(ContentMismatch, match="sha256:"):
        fetch(items, origin=origin, staging=tmp_path, settings=TransferSettings(patience_seconds=5))


def test_an_address_that_ended_is_asked_for_again(hub: Hub, tmp_path: Path) -> None:
    origin = opened(hub)
    hub.expired = 1
    settings = TransferSettings(connections=1, patience_seconds=5)
    (got,) = fetch(origin.list("hf://owner/tiny", include=["*.safetensors"]), origin=origin, staging=tmp_path, settings=settings)  # fmt: skip  # noqa: E501
    assert got.path.stat().st_size == 12 * MIB


def test_one_file_of_a_repository_is_a_bundle_as_it_is_elsewhere(hub: Hub, tmp_path: Path) -> None:
    origin = opened(hub)
    (item,) = origin.list("hf://owner/tiny/config.json")
    (got,) = fetch([item], origin=origin, staging=tmp_path, settings=TransferSettings(patience_seconds=5))
    assert (item.path, got.path.read_bytes()) == ("config.json", CONFIG)


@pytest.mark.parametrize(
    "uri", ["hf://owner/tiny/other.json", "hf://owner/tiny/onnx/other.json", "hf://owner/tiny/no/x"]
)
def test_a_file_that_a_repository_has_not_is_one_line(uri: str, hub: Hub) -> None:
    with pytest.raises(BundleMissing, match=f"there is nothing at {uri}"):
        opened(hub).list(uri)


def put(hub: Hub, path: str, content: bytes) -> None:
    hub.server.files[f"owner/tiny/resolve/main/{path}"] = content
    oid = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
    hub.folder.append({"type": "file", "path": path, "size": len(content), "oid": oid})


def test_a_manifest_in_a_repository_names_the_files_beside_it(hub: Hub, tmp_path: Path) -> None:
    """It was "nothing at" that address: the hub lists folders only."""
    model = b"m" * 1000
    told = {"files": [{"path": "model.onnx", "size": len(model), "sha256": hashlib.sha256(model).hexdigest()}]}
    put(hub, "onnx/model.onnx", model)
    put(hub, "onnx/notes.txt", b"not in the manifest")
    put(hub, "onnx/manifest.json", json.dumps(told).encode())
    uri = "manifest+hf://owner/tiny/onnx/manifest.json"
    origin = origin_for(uri, OriginCredentials(hub_endpoint=hub.server.url, hub_token="secret"))
    (got,) = fetch(origin.list(uri), origin=origin, staging=tmp_path, settings=TransferSettings(patience_seconds=5))
    assert (got.item.path, got.path.read_bytes(), got.verified) == ("model.onnx", model, "manifest")


def test_a_manifest_of_a_commit_cannot_change() -> None:
    commit = "0123456789" * 4
    assert BundleAddress.of(f"manifest+hf://owner/tiny@{commit}/manifest.json").is_pinned
    assert not BundleAddress.of("manifest+hf://owner/tiny@main/manifest.json").is_pinned


def test_a_private_repository_without_a_token_is_one_line(hub: Hub) -> None:
    with pytest.raises(OriginRefused, match="refuses these credentials"):
        opened(hub, token="wrong").list("hf://owner/tiny")


def test_a_repository_that_is_not_there_is_one_line(hub: Hub) -> None:
    with pytest.raises(BundleMissing, match="there is nothing at hf://owner/other"):
        opened(hub).list("hf://owner/other")


@pytest.mark.parametrize(
    ("uri", "parts"),
    [
        ("hf://o/n", ("models", "o/n", "main", "")),
        ("hf://o/n@v1.0", ("models", "o/n", "v1.0", "")),
        ("hf://datasets/o/n@refs%2Fpr%2F3/data/x", ("datasets", "o/n", "refs/pr/3", "data/x")),
    ],
)
def test_an_address_says_kind_repository_revision_and_folder(uri: str, parts: tuple[str, ...]) -> None:
    assert split_hub(uri) == parts


def test_an_address_that_names_no_repository_is_refused() -> None:
    with pytest.raises(UnknownOrigin, match="write hf://owner/name"):
        origin_for("hf://only-a-name")
