"""Where the API server keeps objects of each kind: asked of the server itself, so that any kind can be applied."""

from collections.abc import Iterable, Mapping
from typing import Any

from dsec_blocks.model.errors import DsecError
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.errors import NotFound


class UnknownKind(DsecError):
    """The cluster has no such kind."""

    exit_code = 3


class Kinds:
    """Paths of objects, by `apiVersion` and kind."""

    def __init__(self, resources: Mapping[tuple[str, str], tuple[str, bool]]) -> None:
        self._resources = resources

    @classmethod
    async def of(cls, api: Api, objects: Iterable[Mapping[str, Any]]) -> "Kinds":
        """All kinds of the API versions that these objects name."""
        found: dict[tuple[str, str], tuple[str, bool]] = {}
        for version in sorted({each["apiVersion"] for each in objects}):
            try:
                listing = await api.get(_root(version))
            except NotFound:
                continue
            for resource in listing["resources"]:
                if "/" not in resource["name"]:
                    found[version, resource["kind"]] = (resource["name"], bool(resource["namespaced"]))
        return cls(found)

    def path(self, item: Mapping[str, Any]) -> str:
        """The path of one object.

        Raises `UnknownKind`.
        """
        version, kind = item["apiVersion"], item["kind"]
        if (version, kind) not in self._resources:
            raise UnknownKind(f"this cluster has no {kind} in {version}; it is too old, or an extension is missing")
        name, is_namespaced = self._resources[version, kind]
        place = f"/namespaces/{item['metadata']['namespace']}" if is_namespaced else ""
        return f"{_root(version)}{place}/{name}/{item['metadata']['name']}"


def _root(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"
