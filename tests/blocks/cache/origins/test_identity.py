"""Who asks an origin is told apart by whatever AWS's chain of credentials goes by, and never by a secret."""

import base64
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dsec_blocks.cache.errors import OriginRefused
from dsec_blocks.cache.origins import OriginCredentials
from dsec_blocks.cache.origins.aws import caller
from dsec_blocks.cache.origins.opening import identity_of
from dsec_blocks.cache.origins.paths import PathOrigin
from tests.blocks.cache.conftest import Place

KEYS = """
[alice]
aws_access_key_id = AKIAALICE
aws_secret_access_key = hush
[bob]
aws_access_key_id = AKIABOB
aws_secret_access_key = hush
"""
CONFIG = """
[profile trainer]
role_arn = arn:aws:iam::1:role/trainer
source_profile = alice
[profile reader]
role_arn = arn:aws:iam::1:role/reader
source_profile = alice
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's AWS files, and nothing of AWS in the environment."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ROLE_ARN"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "user" / ".aws"
    folder.mkdir(parents=True)
    (folder / "credentials").write_text(KEYS)
    (folder / "config").write_text(CONFIG)
    monkeypatch.setenv("HOME", str(folder.parent))
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def asking_as(profile: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AWS_PROFILE", profile)
    return identity_of(OriginCredentials())


def test_bob_is_not_given_what_alice_was_let_in_to_see(
    home: Path, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(PathOrigin):
        def list(self, uri, **patterns):
            raise OriginRefused(f"{uri}: the store refuses these credentials")

    uri = place.put("secret", w_bin=b"private")
    monkeypatch.setenv("AWS_PROFILE", "alice")
    place.cache().acquire(uri).release()
    place.cache().acquire(uri).release()
    monkeypatch.setenv("AWS_PROFILE", "bob")
    with pytest.raises(OriginRefused):
        replace(place.cache(), origin_of=lambda _: Refusing()).acquire(uri)


def test_profiles_and_roles_are_told_apart(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["alice", "bob", "trainer", "reader", "default"]
    assert len({asking_as(name, monkeypatch) for name in names}) == len(names)


def test_a_profile_that_was_given_another_key_is_somebody_else(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the key is only borrowed by the profile that is asked with."""
    before = [asking_as(name, monkeypatch) for name in ("alice", "trainer", "bob")]
    (home / "credentials").write_text(KEYS.replace("AKIAALICE", "AKIACAROL"))
    after = [asking_as(name, monkeypatch) for name in ("alice", "trainer", "bob")]
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, False, True]


def test_a_secret_that_was_changed_changes_nobody_and_is_not_read(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = asking_as("alice", monkeypatch)
    (home / "credentials").write_text(KEYS.replace("hush", "quiet"))
    assert asking_as("alice", monkeypatch) == before
    assert "quiet" not in " ".join(caller({"HOME": str(home.parent), "AWS_PROFILE": "alice"}))


def test_keys_of_a_block_are_asked_with_whatever_the_profile(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = OriginCredentials(access_key_id="of a block")
    monkeypatch.setenv("AWS_PROFILE", "alice")
    as_alice = identity_of(keys)
    monkeypatch.setenv("AWS_PROFILE", "bob")
    assert identity_of(keys) == as_alice


def test_the_same_key_at_another_store_is_somebody_else(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address does not name its store, so the store belongs to who asks."""
    keys = OriginCredentials(access_key_id="admin")
    here = identity_of(keys)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://elsewhere:9000")
    assert identity_of(keys) != here


def token(path: Path, subject: str, number: int) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"sub": subject, "exp": number}).encode()).decode().rstrip("=")
    path.write_text(f"header.{claims}.signature-{number}")
    return str(path)


def test_pods_are_told_apart_by_whom_their_token_speaks_for_and_not_by_the_token(tmp_path: Path) -> None:
    name = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"
    asked = {"HOME": str(tmp_path), name: token(tmp_path / "token", "system:serviceaccount:a:train", 1)}
    first = caller(asked)
    token(tmp_path / "token", "system:serviceaccount:a:train", 2)
    assert caller(asked) == first
    token(tmp_path / "token", "system:serviceaccount:b:train", 2)
    assert caller(asked) != first


@pytest.mark.parametrize("text", ["", "[broken", "no section = 1", "\x00\xff"])
def test_files_that_cannot_be_read_are_no_error_here(tmp_path: Path, text: str) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(text)
    assert caller({"HOME": str(tmp_path), "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": "/nowhere"})


def test_telling_who_asks_loads_no_boto3(home: Path) -> None:
    program = "import sys, dsec_blocks.cache as c; c.open_cache(); print('boto3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
