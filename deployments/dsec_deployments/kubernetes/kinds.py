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

    def collection(self, version: str, kind: str) -> str:
        """Where all objects of a kind are, in whatever namespace.

        Raises `UnknownKind`.
        """
        return f"{_root(version)}/{self._resource(version, kind)[0]}"

    def path(self, item: Mapping[str, Any]) -> str:
        """The path of one object.

        Raises `UnknownKind`.
        """
        version = item["apiVersion"]
        name, is_namespaced = self._resource(version, item["kind"])
        place = f"/namespaces/{item['metadata']['namespace']}" if is_namespaced else ""
        return f"{_root(version)}{place}/{name}/{item['metadata']['name']}"

    def _resource(self, version: str, kind: str) -> tuple[str, bool]:
        if (version, kind) not in self._resources:
            raise UnknownKind(f"this cluster has no {kind} in {version}; it is too old, or an extension is missing")
        return self._resources[version, kind]


def name_of(item: Mapping[str, Any]) -> str:
    """An object as people call it: kind, namespace and name."""
    namespace = item["metadata"].get("namespace")
    return f"{item['kind']} {namespace + '/' if namespace else ''}{item['metadata']['name']}"


def _root(version: str) -> str:
    return f"/apis/{version}" if "/" in version else f"/api/{version}"
