"""A gang's Jobs on the API server: all there or none, each call safe to repeat, and no successor ever hit.

Member 0's Job comes first and owns the others, so that whoever deletes it, we, a person or the garbage collector,
deletes the gang. What exists already under a name that says run, attempt and member is adopted. Deletes name the uid.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from dsec_blocks.model.errors import ClusterError
from dsec_blocks.model.names import LABEL_ATTEMPT, LABEL_RUN_ID
from dsec_workers.clusters.kubernetes.api import Api, Object
from dsec_workers.clusters.kubernetes.errors import AlreadyExists, Conflict, Forbidden, NotFound, Refused
from dsec_workers.clusters.kubernetes.manifest import owned_by
from dsec_workers.clusters.kubernetes.naming import (
    LABEL_POOL,
    key_of,
    label_value,
    placement_of,
)
from dsec_workers.clusters.protocol import GangKey


class GangJobs:
    """All gangs' Jobs of one pool. `at_once` bounds the requests in flight."""

    def __init__(self, api: Api, *, pool: str, at_once: int) -> None:
        self._api = api
        self._pool = label_value(pool)
        self._turns = asyncio.Semaphore(at_once)

    async def create(self, jobs: Sequence[Object]) -> list[Object]:
        """All Jobs of a gang as they are on the server, created now or before.

        Raises `ClusterError` when one cannot be there; those that were created by this call are deleted again.
        """
        created: list[Object] = []
        try:
            owner = await self._create_or_adopt(jobs[0], created)
            owned = [owned_by(job, owner) for job in jobs[1:]]
            found = await asyncio.gather(
                *(self._create_or_adopt(job, created) for job in owned), return_exceptions=True
            )
            failures = [each for each in found if isinstance(each, BaseException)]
            if failures:
                raise failures[0]
        except BaseException as error:
            await asyncio.shield(self._take_back(created))
            if isinstance(error, OSError):  # a fault on the way: applied or not, the next attempt finds out
                raise ClusterError(str(error)) from error
            raise
        return [owner, *(each for each in found if not isinstance(each, BaseException))]

    async def of(self, key: GangKey, namespace: str) -> list[Object]:
        """The Jobs of one attempt that exist."""
        labels = f"{LABEL_RUN_ID}={key.run_id},{LABEL_ATTEMPT}={key.attempt}"
        return (await self._api.list(_path(namespace), labels=labels))[0]

    async def all(self, namespace: str = "") -> dict[GangKey, list[Object]]:
        """Every attempt of the pool that has a Job, ended ones included; in all namespaces if none is named."""
        path = _path(namespace) if namespace else "/apis/batch/v1/jobs"
        found: dict[GangKey, list[Object]] = {}
        for job in (await self._api.list(path, labels=f"{LABEL_POOL}={self._pool}"))[0]:
            key = key_of(job)
            if key is not None:
                found.setdefault(key, []).append(job)
        return found

    async def delete(self, jobs: Sequence[Mapping[str, Any]]) -> None:
        """Delete these very Jobs and their pods; one that is gone or was replaced is left alone."""
        await asyncio.gather(*(self._delete(job) for job in jobs))

    async def delete_pod(self, pod: Mapping[str, Any], *, grace_seconds: int) -> None:
        """Have this very pod stopped: SIGTERM, then SIGKILL after the grace. At least a second, since 0 would take
        the object away before its containers are known to have stopped.
        """
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        async with self._turns:
            with suppress(Conflict):
                await self._api.delete(
                    path, uid=metadata["uid"], grace_seconds=max(1, grace_seconds), at="kube.pod.delete"
                )

    async def _create_or_adopt(self, job: Object, created: list[Object]) -> Object:
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        async with self._turns:
            try:
                made = await self._api.create(_path(namespace), job, at="kube.job.create")
            except AlreadyExists:
                return await self._adopt(job)
            except NotFound as error:
                raise ClusterError(
                    f"namespace {namespace} does not exist; create it, or name another one with DSEC_NAMESPACE or the "
                    "run's namespace"
                ) from error
            except Refused as error:
                raise ClusterError(f"Job {name}: the API server refuses the pod template: {error}") from error
            except Forbidden as error:
                if error.by_quota:
                    raise
                raise ClusterError(missing_permission(error, "create jobs.batch", namespace)) from error
        created.append(made)
        return made

    async def _adopt(self, job: Object) -> Object:
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        found = await self._api.get(f"{_path(namespace)}/{name}")
        if key_of(found) != key_of(job) or placement_of(found) != placement_of(job):
            raise ClusterError(f"Job {namespace}/{name} exists and is not this attempt's; delete it if nobody needs it")
        if found["metadata"].get("deletionTimestamp"):
            raise ClusterError(f"Job {namespace}/{name} is being deleted; this attempt cannot start any more")
        return found

    async def _take_back(self, created: Sequence[Object]) -> None:
        with suppress(ClusterError, OSError):  # what is left is swept by labels: its attempt is never current again
            await self.delete(created)

    async def _delete(self, job: Mapping[str, Any]) -> None:
        metadata = job["metadata"]
        path = f"{_path(metadata['namespace'])}/{metadata['name']}"
        async with self._turns:
            with suppress(Conflict):
                await self._api.delete(path, uid=metadata["uid"], propagation="Background", at="kube.job.delete")


def missing_permission(error: Exception, what: str, namespace: str) -> str:
    """One line for a verb that our account lacks: which, on what, and how to grant it."""
    where = f" in namespace {namespace}" if namespace else ""
    scope = f"--namespace {namespace}" if namespace else ""
    kind = "role" if namespace else "clusterrole"
    verb, _, resource = what.partition(" ")
    return (
        f"this account may not {what}{where} ({error}). Grant it, for example: kubectl create {kind} dsec-extra "
        f"--verb={verb} --resource={resource} {scope}".rstrip()
        + ", bound to the worker's service account; the Helm "
        "chart does"
    )


def _path(namespace: str) -> str:
    return f"/apis/batch/v1/namespaces/{namespace}/jobs"
