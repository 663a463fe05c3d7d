"""Which taints of nodes do not keep gangs away: read from a worker's environment, and what is customary without.

The whole pool is judged by these. What a pool's template or a run tolerates beyond them is put on its pods, and opens
no node: a gang is placed before anybody knows which of its pods' tolerations would matter where.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator

from dsec_blocks.model.errors import InvalidRequest
from dsec_workers.clusters.kubernetes.resources import VENDORS

Toleration = Mapping[str, Any]
GPU_TOLERATIONS: tuple[Toleration, ...] = tuple({"key": vendor.whole, "operator": "Exists"} for vendor in VENDORS)
"""Clouds and device plugins keep others off GPU nodes by a taint whose key is the cards' resource name (the admission
plugin ExtendedResourceToleration has the same custom)."""
_EXAMPLE = '[{"key": "nvidia.com/gpu", "operator": "Exists"}]'


class _Toleration(BaseModel):
    model_config = ConfigDict(extra="forbid")

    key: str = ""
    operator: Literal["Exists", "Equal"] = "Equal"
    value: str = ""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""

    @model_validator(mode="after")
    def _means_something(self) -> "_Toleration":
        if not self.key and self.operator != "Exists":
            raise ValueError("a toleration without a key has the operator Exists")
        if self.value and self.operator == "Exists":
            raise ValueError("with the operator Exists there is no value")
        return self


_TOLERATIONS = TypeAdapter(list[_Toleration])


def read_tolerations(text: str, *, variable: str) -> tuple[Toleration, ...]:
    """The tolerations in `text`, a JSON list as in a pod's spec.

    Raises `InvalidRequest` naming `variable` and what is wrong in which entry.
    """
    try:
        given = json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{variable}: {text!r} is not JSON ({error}); write for example {_EXAMPLE}") from None
    try:
        found = _TOLERATIONS.validate_python(given, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        where = ", ".join(f"entry {part}" if isinstance(part, int) else str(part) for part in first["loc"])
        raise InvalidRequest(
            f"{variable}: {where + ': ' if where else ''}{first['msg']}; write for example {_EXAMPLE}"
        ) from None
    return tuple(each.model_dump(exclude_defaults=True) for each in found)
