"""Whose rights AWS's chain of credentials would give, read without boto3: loading it takes longer than a warm start.

The chain is the environment's keys, a profile, a web identity, a container's role, the machine's role. What tells two
callers apart in each of them is collected, secrets left out. A key that ends within the hour is part of it only where
nothing lasting names its owner; an identity that changes costs one more question to the origin.
"""

import base64
import configparser
import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

_TOLD = (
    "AWS_ACCESS_KEY_ID", "AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)  # fmt: skip
_SECRET = frozenset({"aws_secret_access_key", "aws_session_token", "aws_security_token"})


def caller(environment: Mapping[str, str]) -> list[str]:
    """What tells the environment's caller apart from others: "name=value" texts without a secret among them."""
    told = [f"{name}={environment[name]}" for name in _TOLD if environment.get(name)]
    profile = environment.get("AWS_PROFILE") or environment.get("AWS_DEFAULT_PROFILE") or "default"
    told += [f"AWS_PROFILE={profile}", *_profile(profile, environment)]
    for name in ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"):
        if path := environment.get(name):
            told.append(f"{name}: {_subject(Path(path))}")
    return told


def _profile(name: str, environment: Mapping[str, str]) -> Iterator[str]:
    """What both files say of a profile, and of those that it borrows keys from."""
    home = Path(environment.get("HOME") or "~").expanduser() / ".aws"
    keys = _sections(Path(environment.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials").expanduser())
    config = _sections(Path(environment.get("AWS_CONFIG_FILE") or home / "config").expanduser())
    seen: set[str] = set()
    while name and name not in seen:
        seen.add(name)
        told = {**config.get(name if name == "default" else f"profile {name}", {}), **keys.get(name, {})}
        yield from (f"{name}.{key}={value}" for key, value in sorted(told.items()) if key not in _SECRET)
        name = told.get("source_profile", "")


def _sections(path: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(strict=False, default_section="")
    with suppress(OSError, configparser.Error, UnicodeDecodeError):
        parser.read_string(path.read_text())
    return {name: dict(parser.items(name)) for name in parser.sections()}


def _subject(token: Path) -> str:
    """Whom a token file speaks for; the token itself is renewed all the time."""
    with suppress(OSError, ValueError, IndexError, AttributeError):
        claims = token.read_text().split(".")[1]
        return str(json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))).get("sub", ""))
    return ""
