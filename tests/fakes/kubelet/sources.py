"""What a pod refers to in the API: Secrets, ConfigMaps, and the token of its service account."""

from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.errors import NotFound


class Unresolved(Exception):
    """Something that a pod needs is not there (yet); a kubelet goes on trying."""


class Sources:
    """Read with the kubelet's rights, in one pod's namespace, as they are now."""

    def __init__(self, api: Api, pod: Mapping[str, Any]) -> None:
        self._api = api
        self._pod = pod
        self._namespace: str = pod["metadata"]["namespace"]

    async def content(self, kind: str, name: str, *, optional: bool) -> dict[str, bytes]:
        """All of a `secret` or `configmap`; empty when it is optional and not there.

        Raises `Unresolved`.
        """
        try:
            found = await self._api.get(f"/api/v1/namespaces/{self._namespace}/{kind}s/{name}")
        except NotFound:
            if optional:
                return {}
            raise Unresolved(f'{kind} "{name}" not found') from None
        except ClusterError as error:
            raise Unresolved(str(error)) from error
        encoded = (found.get("data") if kind == "secret" else found.get("binaryData")) or {}
        plain = (found.get("data") if kind == "configmap" else None) or {}
        return {key: b64decode(value) for key, value in encoded.items()} | {
            key: value.encode() for key, value in plain.items()
        }

    async def value(self, kind: str, reference: Mapping[str, Any]) -> bytes | None:
        """One key; None when it is optional and not there.

        Raises `Unresolved`.
        """
        name, key, optional = reference.get("name") or "", reference["key"], bool(reference.get("optional"))
        found = await self.content(kind, name, optional=optional)
        if key not in found and not optional:
            raise Unresolved(f"couldn't find key {key} in {kind} {self._namespace}/{name}")
        return found.get(key)

    async def token(self, projection: Mapping[str, Any]) -> bytes:
        """A token of the pod's service account, bound to the pod. It is not renewed: it outlives every test.

        Raises `Unresolved`.
        """
        metadata, account = self._pod["metadata"], self._pod["spec"].get("serviceAccountName") or "default"
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [projection["audience"]] if projection.get("audience") else None,
                "expirationSeconds": projection.get("expirationSeconds") or 3600,
                "boundObjectRef": {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": metadata["name"],
                    "uid": metadata["uid"],
                },
            },
        }
        path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{account}/token"
        try:
            answer = await self._api.create(path, asked, at="test.kubelet.token")
        except ClusterError as error:
            raise Unresolved(str(error)) from error
        return str(answer["status"]["token"]).encode()
