"""A container's environment variables, resolved in the order in which a kubelet resolves them."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fakes.kubelet import fields
from tests.fakes.kubelet.expansion import expand
from tests.fakes.kubelet.sources import Sources, Unresolved


def image_environment(*, home: Path, hostname: str, more: Mapping[str, str]) -> dict[str, str]:
    """What stands for the image's own: this interpreter on the PATH, and nothing of whoever started the stand-in."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {"PATH": path, "HOME": str(home), "HOSTNAME": hostname, "LANG": "C.UTF-8", **more}


async def resolve(
    container: Mapping[str, Any],
    pod: Mapping[str, Any],
    *,
    base: Mapping[str, str],
    sources: Sources,
    pod_ip: str,
    host_ip: str,
    allocatable: Mapping[str, str],
) -> dict[str, str]:
    """All variables: `base`, then `envFrom`, then `env`, whose values may refer to what stands before them.

    Raises `Unresolved` when a Secret, ConfigMap or key is missing that is not optional.
    """
    found = dict(base)
    for source in container.get("envFrom") or ():
        kind, reference = (
            ("secret", source["secretRef"]) if "secretRef" in source else ("configmap", source["configMapRef"])
        )
        content = await sources.content(kind, reference.get("name") or "", optional=bool(reference.get("optional")))
        found |= {(source.get("prefix") or "") + key: value.decode() for key, value in sorted(content.items())}
    for variable in container.get("env") or ():
        name, origin = variable["name"], variable.get("valueFrom")
        if not origin:
            found[name] = expand(variable.get("value") or "", found)
        elif "fieldRef" in origin:
            try:
                found[name] = fields.field(origin["fieldRef"]["fieldPath"], pod, pod_ip=pod_ip, host_ip=host_ip)
            except KeyError as error:
                raise Unresolved(f"unsupported fieldPath: {error}") from None
        elif "resourceFieldRef" in origin:
            reference = origin["resourceFieldRef"]
            found[name] = fields.resource(
                reference, _named(pod, reference.get("containerName"), container), allocatable
            )
        else:
            kind = "secret" if "secretKeyRef" in origin else "configmap"
            value = await sources.value(kind, origin["secretKeyRef" if kind == "secret" else "configMapKeyRef"])
            if value is not None:
                found[name] = value.decode()
    return found


def _named(pod: Mapping[str, Any], name: str | None, default: Mapping[str, Any]) -> Mapping[str, Any]:
    everyone = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]
    return next((container for container in everyone if container["name"] == name), default)
