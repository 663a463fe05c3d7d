"""What a worker's environment variables hold, read, or refused in one line that names the variable."""

import math
import re

from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.units import parse_duration
from dsec_workers.clusters.kubernetes.resources import quantity

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_HIGHEST_USER = 2**31 - 1


def object_names(text: str, *, variable: str) -> tuple[str, ...]:
    """Names of Kubernetes objects, with commas between them."""
    return _each(text, _NAME, variable=variable, what="name of a Kubernetes object")


def label_keys(text: str, *, variable: str) -> tuple[str, ...]:
    """Keys of labels, with commas between them, for example "topology.kubernetes.io/zone,example.com/rack"."""
    return _each(text, _LABEL_KEY, variable=variable, what="key of a label")


def size(text: str, *, variable: str) -> str:
    """A quantity above zero, as Kubernetes writes it: "16Gi"."""
    try:
        is_some = quantity(text) > 0
    except InvalidRequest as error:
        raise InvalidRequest(f"{variable}: {error}") from None
    if not is_some:
        raise InvalidRequest(f"{variable}: {text!r} is nothing; write for example '16Gi', or leave it empty")
    return text.strip()


def user_id(text: str, *, variable: str) -> int:
    """The number of a user; 0 is whoever the image says."""
    if not text.isdigit() or int(text) > _HIGHEST_USER:
        raise InvalidRequest(f"{variable}: {text!r} is no user's number; write for example 10001, or 0 for the image's")
    return int(text)


def whole_seconds(text: str, *, variable: str) -> int:
    """A duration, rounded up to whole seconds."""
    return math.ceil(parse_duration(text, field=variable))


def _each(text: str, pattern: re.Pattern[str], *, variable: str, what: str) -> tuple[str, ...]:
    found = tuple(filter(None, (part.strip() for part in text.split(","))))
    for part in found:
        if not pattern.fullmatch(part):
            raise InvalidRequest(f"{variable}: {part!r} is no {what}; write them with commas between them")
    return found
