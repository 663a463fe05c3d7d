"""The one Secret of a namespace: where the Prefect API is, its key, and the key from which gangs' tokens follow.

A Job's text can be read by many who may not read Secrets, so nothing secret is in it. Usually the Helm chart has made
it; where it is missing and we may, it is made here.
"""

import base64
import secrets
from collections.abc import Mapping

from dsec_blocks.model.errors import ClusterError
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.errors import AlreadyExists, Forbidden, NotFound
from dsec_workers.clusters.kubernetes.gang_jobs import missing_permission
from dsec_workers.clusters.kubernetes.manifest import ENV_KEY, FROM_SECRET, SECRET_VARIABLES

LABELS = {"app.kubernetes.io/managed-by": "dsec"}


class NamespaceSecrets:
    """The Secret called `name` in each namespace that gangs run in; read once, changed when Prefect's address does."""

    def __init__(self, api: Api, *, name: str) -> None:
        self._api, self._name = api, name
        self._known: dict[str, dict[str, str]] = {}

    async def key(self, namespace: str, env: Mapping[str, str] = {}) -> str:
        """The namespace's key, with the Secret there and up to date with what `env` says of Prefect.

        Raises `ClusterError` when it cannot be read or made.
        """
        wanted = {name: env[name] for name in SECRET_VARIABLES if env.get(name)}
        known = self._known.get(namespace)
        if known is None or not wanted.items() <= known.items():
            try:
                known = self._known[namespace] = await self._settled(namespace, wanted)
            except Forbidden as error:
                raise ClusterError(missing_permission(error, "get,create,patch secrets", namespace)) from error
        return known[ENV_KEY]

    def is_ours_alone(self, namespace: str) -> bool:
        """Whether the Secret, as it was read, holds nothing that members are not to be given: then they may have all
        of it.
        """
        return self._known.get(namespace, {}).keys() <= {*FROM_SECRET}

    async def _settled(self, namespace: str, wanted: Mapping[str, str]) -> dict[str, str]:
        path = f"/api/v1/namespaces/{namespace}/secrets"
        try:
            found = await self._api.get(f"{path}/{self._name}")
        except NotFound:
            made = {ENV_KEY: secrets.token_urlsafe(32), **wanted}
            body = {"metadata": {"name": self._name, "labels": LABELS}, "data": _encoded(made)}
            try:
                found = await self._api.create(path, body, at="kube.secret.create")
            except AlreadyExists:  # another worker was faster; its key counts
                found = await self._api.get(f"{path}/{self._name}")
            except NotFound as error:
                raise ClusterError(
                    f"namespace {namespace} does not exist; create it, or name another one with DSEC_NAMESPACE"
                ) from error
        present = {name: base64.b64decode(value).decode() for name, value in (found.get("data") or {}).items()}
        is_ours = LABELS.items() <= (found["metadata"].get("labels") or {}).items()
        missing = {} if present.get(ENV_KEY) else {ENV_KEY: secrets.token_urlsafe(32)}
        if is_ours:  # one that somebody else made says what its maker wants it to say
            missing |= {name: value for name, value in wanted.items() if present.get(name) != value}
        if missing:
            await self._api.merge(f"{path}/{self._name}", {"data": _encoded(missing)}, at="kube.secret.merge")
        return {**wanted, **present, **missing}


def _encoded(values: Mapping[str, str]) -> dict[str, str]:
    return {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}
