"""The Jobs of a gang: one a member, each on the node that was chosen for it.

Pure. A pool's base job template is taken over as prefect-kubernetes would use it, then what a gang needs to be a gang
is put on top: those few fields are ours whatever the template says, everything else is the user's.
"""

import copy
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from dsec_blocks.model import gang_protocol
from dsec_blocks.model.errors import ClusterError
from dsec_blocks.model.gangs import MemberPlacement
from dsec_blocks.model.names import ENV_ATTEMPT, ENV_CACHE_DIR, ENV_MEMBER, ENV_RUN_ID, ENV_STORE
from dsec_workers.clusters.kubernetes.counted import annotation, asked_of
from dsec_workers.clusters.kubernetes.naming import (
    ANNOTATION_GRACE,
    ANNOTATION_NAME,
    ANNOTATION_PROTOCOL,
    ANNOTATION_START_TIMEOUT,
    LABEL_MEMBER,
    gang_labels,
    job_name,
    labels_of_run,
    placement_annotations,
)
from dsec_workers.clusters.kubernetes.pod_security import secure
from dsec_workers.clusters.kubernetes.settings import SCRATCH, TERMINATION_LOG, KubernetesSettings
from dsec_workers.clusters.local.layout import order_to_json
from dsec_workers.clusters.protocol import LaunchOrder

Object = dict[str, Any]
ENV_ORDER = "DSEC_ORDER"
"""What to run, as `layout.order_to_json` writes it; only member 0's has the whole placement. Under `VARIABLES` is what
the outpost adds to its environment: the API server keeps track of each entry of a container's `env` by itself, in the
Job and in the pod, at a cost that a gang of one card notices."""
VARIABLES = "variables"
ENV_KEY = "DSEC_CHANNEL_KEY"
ENV_PORT = "DSEC_OUTPOST_PORT"
ENV_ADDRESS = "DSEC_OUTPOST_ADDRESS"
ENV_SCRATCH = "DSEC_SCRATCH"
ENV_TERMINATION_LOG = "DSEC_TERMINATION_LOG"
SECRET_VARIABLES = ("PREFECT_API_URL", "PREFECT_API_KEY", "PREFECT_API_AUTH_STRING")
"""What members take from their namespace's Secret, where it has them, instead of from their Job's text."""
FROM_SECRET = (ENV_KEY, *SECRET_VARIABLES)
"""All that our Secret in a namespace holds."""
OUTPOST = ["python", "-m", "dsec_workers.clusters.kubernetes.outpost"]
CONTAINER = "gang"
SCRATCH_VOLUME, SHARED_MEMORY_VOLUME, CACHE = "dsec-scratch", "dsec-shm", "dsec-cache"
SHARED_MEMORY = "/dev/shm"
HOME = f"{SCRATCH}/home"
"""A home that any user may write to: images are made for users of their own, and their roots may be read-only."""
_CLAIMING = ("persistentVolumeClaim", "ephemeral")
"""Volumes that stand for a claim, which kube-scheduler may have to bind to the node first."""
_NO_DISRUPTION = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}


def jobs_of(
    order: LaunchOrder,
    settings: KubernetesSettings,
    *,
    namespace: str,
    template: Mapping[str, Any] | None = None,
    whole_secret: bool = True,
) -> list[Object]:
    """The gang's Jobs, member 0's first. The others name it as their owner once it exists (`owned_by`).

    With `whole_secret` members are given all that the namespace's Secret holds, else no more than `FROM_SECRET` of it.
    """
    return [
        _job(order, settings, namespace=namespace, index=index, template=template or {}, whole_secret=whole_secret)
        for index in range(len(order.placement.members))
    ]


def owned_by(job: Object, owner: Mapping[str, Any]) -> Object:
    """`job`, which goes when `owner` goes: whoever deletes member 0's Job deletes the whole gang."""
    metadata = owner["metadata"]
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
    return {**job, "metadata": {**job["metadata"], "ownerReferences": [reference]}}


def resources_of(member: MemberPlacement) -> dict[str, int]:
    """How many of which resource a member's places are ("n1/nvidia.com/gpu/3" is one nvidia.com/gpu).

    Raises `ClusterError` for a place that this adapter did not name.
    """
    counted: Counter[str] = Counter()
    for place in member.devices:
        node, _, rest = place.partition("/")
        resource, _, index = rest.rpartition("/")
        if node != member.node or not resource or not index.isdigit():
            raise ClusterError(f"{place!r} is no place for a card on {member.node}: is this another pool's ledger?")
        counted[resource] += 1
    return dict(counted)


def _job(
    order: LaunchOrder,
    settings: KubernetesSettings,
    *,
    namespace: str,
    index: int,
    template: Mapping[str, Any],
    whole_secret: bool,
) -> Object:
    member = order.placement.members[index]
    job = copy.deepcopy(dict(template))
    labels = {
        **labels_of_run(order.labels, team=order.team),
        **gang_labels(order.key, pool=settings.pool, members=len(order.placement.members)),
        LABEL_MEMBER: str(index),
    }
    annotations = {
        **placement_annotations(member),
        **annotation(order.request),
        ANNOTATION_NAME: order.name,
        ANNOTATION_START_TIMEOUT: f"{order.start_timeout_seconds:g}",
        ANNOTATION_GRACE: f"{order.request.grace_seconds:g}",
        ANNOTATION_PROTOCOL: str(gang_protocol.VERSION),
    }
    job["apiVersion"], job["kind"] = "batch/v1", "Job"
    metadata = _child(job, "metadata")
    metadata.pop("generateName", None)
    metadata.update(name=job_name(order.key, index), namespace=namespace)
    _extend(metadata, "labels", labels)
    _extend(metadata, "annotations", annotations)
    spec = _child(job, "spec")
    spec.pop("ttlSecondsAfterFinished", None)  # it would take the exit away before it is recorded
    spec.update(backoffLimit=0, parallelism=1, completions=1, podReplacementPolicy="Failed")
    pod = _child(spec, "template")
    pod_metadata = _child(pod, "metadata")
    _extend(pod_metadata, "labels", labels)
    _extend(pod_metadata, "annotations", {**_NO_DISRUPTION, **annotations})
    _pod_spec(_child(pod, "spec"), order, settings, index=index, whole_secret=whole_secret)
    return job


def _pod_spec(
    spec: Object, order: LaunchOrder, settings: KubernetesSettings, *, index: int, whole_secret: bool
) -> None:
    member = order.placement.members[index]
    for stray in ("parallelism", "completions"):  # prefect-kubernetes' own template has them here, by mistake
        spec.pop(stray, None)
    grace = math.ceil(order.request.grace_seconds) + settings.upload_seconds
    spec.update(restartPolicy="Never", terminationGracePeriodSeconds=grace)
    spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("enableServiceLinks", False)
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    if settings.service_account and not spec.get("serviceAccountName"):
        spec["serviceAccountName"] = settings.service_account
    if not spec.get("serviceAccountName"):
        spec.pop("serviceAccountName", None)
    own = [*(spec.get("tolerations") or [])]
    spec["tolerations"] = [*own, *(dict(each) for each in settings.tolerations if each not in own)]
    pulled = [*(spec.get("imagePullSecrets") or [])]
    if more := [{"name": name} for name in settings.pull_secrets if {"name": name} not in pulled]:
        spec["imagePullSecrets"] = [*pulled, *more]
    _put_on(spec, member.node)
    ours = _volumes(settings)
    spec["volumes"] = [*(v for v in spec.get("volumes") or [] if v["name"] not in ours), *ours.values()]
    containers = spec.get("containers") or [{}]
    containers[0] = _container(dict(containers[0]), order, settings, index=index, whole_secret=whole_secret)
    secure(spec, containers[0], user=settings.user)
    spec["containers"] = containers


def _volumes(settings: KubernetesSettings) -> dict[str, Object]:
    memory = {"medium": "Memory", **({"sizeLimit": settings.shared_memory} if settings.shared_memory else {})}
    found: dict[str, Object] = {SCRATCH_VOLUME: {"emptyDir": {}}, SHARED_MEMORY_VOLUME: {"emptyDir": memory}}
    if settings.cache_path:
        # Made where no agent has been yet: a cache that is not there must not keep a pod from starting.
        found[CACHE] = {"hostPath": {"path": settings.cache_path, "type": "DirectoryOrCreate"}}
    return {name: {"name": name, **source} for name, source in found.items()}


def _mounts(given: Sequence[Object], settings: KubernetesSettings) -> list[Object]:
    """The template's, then ours. Its own /dev/shm stays."""
    mounts = [mount for mount in given if mount["mountPath"].rstrip("/") != SCRATCH]
    ours = [{"name": SCRATCH_VOLUME, "mountPath": SCRATCH}]
    if not any(mount["mountPath"].rstrip("/") == SHARED_MEMORY for mount in mounts):
        ours.append({"name": SHARED_MEMORY_VOLUME, "mountPath": SHARED_MEMORY})
    if settings.cache_path:
        # The same path as on the node and in the agent, so that a NodeCache block means one folder everywhere.
        ours.append({"name": CACHE, "mountPath": settings.cache_path})
    return [*mounts, *ours]


def _put_on(spec: Object, node: str) -> None:
    """Place the pod: by name, or through kube-scheduler where it has volumes or claims to bind first."""
    claims = any(kind in volume for volume in spec.get("volumes") or [] for kind in _CLAIMING)
    if not claims and not spec.get("resourceClaims"):
        spec["nodeName"] = node
        return
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity = _child(_child(spec, "affinity"), "nodeAffinity")
    affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [here]}


def _container(
    container: Object, order: LaunchOrder, settings: KubernetesSettings, *, index: int, whole_secret: bool
) -> Object:
    container["name"] = container.get("name") or CONTAINER
    container["image"] = order.request.image or container.get("image") or settings.image
    container["command"] = list(OUTPOST)
    container.pop("args", None)
    if container.get("imagePullPolicy") is None:
        container.pop("imagePullPolicy", None)
    own = _own_variables(order, settings, index=index)
    ours = {*own, *FROM_SECRET, ENV_ORDER, ENV_ADDRESS}
    given = [entry for entry in _listed(container.get("env")) if entry["name"] not in ours]
    said = {entry["name"] for entry in given}
    defaults = {name: value for name, value in _default_variables(settings).items() if value and name not in said}
    container["env"] = [
        *given,
        {"name": ENV_ORDER, "value": _order(order, settings, index=index, variables={**own, **defaults})},
        {"name": ENV_ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        *(_from_secret(name, settings.secret) for name in FROM_SECRET if not whole_secret),
    ]
    if whole_secret:  # the last one has the last word
        container["envFrom"] = [*(container.get("envFrom") or []), {"secretRef": {"name": settings.secret}}]
    container["resources"] = _resources(container.get("resources") or {}, order, order.placement.members[index])
    container["volumeMounts"] = _mounts(container.get("volumeMounts") or [], settings)
    container.update(terminationMessagePath=TERMINATION_LOG, terminationMessagePolicy="FallbackToLogsOnError")
    return container


def _order(order: LaunchOrder, settings: KubernetesSettings, *, index: int, variables: Mapping[str, str]) -> str:
    record = order_to_json(order)
    # The worker decides how long a start may take; this is for the time in which there is none.
    record["start_timeout_seconds"] += settings.pull_seconds
    record["env"] = {name: value for name, value in order.env.items() if name not in SECRET_VARIABLES}
    if index:
        record["placement"] = []  # member 0 tells the others
    record["request"] = _without_nothing(record["request"])
    record[VARIABLES] = dict(variables)
    return json.dumps(_without_nothing(record), separators=(",", ":")).replace("$", "$$")


def _without_nothing(record: Mapping[str, Any]) -> Object:
    return {name: value for name, value in record.items() if value is not None}


def _own_variables(order: LaunchOrder, settings: KubernetesSettings, *, index: int) -> dict[str, str]:
    """What holds whatever the template says."""
    return {
        ENV_RUN_ID: order.key.run_id,
        ENV_ATTEMPT: str(order.key.attempt),
        ENV_MEMBER: str(index),
        ENV_PORT: str(settings.port),
        ENV_SCRATCH: SCRATCH,
        "TMPDIR": f"{SCRATCH}/tmp",
        ENV_TERMINATION_LOG: TERMINATION_LOG,
    }


def _default_variables(settings: KubernetesSettings) -> dict[str, str]:
    """What the template may say otherwise; empty values are not said."""
    return {
        ENV_STORE: settings.store,
        ENV_CACHE_DIR: settings.cache_path,
        "HOME": HOME,
        "PREFECT_HOME": f"{HOME}/.prefect",
        # Images have no name for this user, and much that asks for one fails without (getpass, torch's compiler cache).
        "USER": "dsec" if settings.user else "",
    }


def _from_secret(name: str, secret: str) -> Object:
    optional = {} if name == ENV_KEY else {"optional": True}
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name, **optional}}}


def _listed(given: Any) -> list[Object]:
    """A template's variables; it may hold them as a list or, unfilled, as a mapping."""
    if isinstance(given, Mapping):
        return [{"name": name, "value": value} for name, value in given.items() if value is not None]
    return list(given or [])


def _resources(given: Mapping[str, Any], order: LaunchOrder, member: MemberPlacement) -> Object:
    limits = {name: amount for name, amount in (given.get("limits") or {}).items() if amount is not None}
    requests = {name: amount for name, amount in (given.get("requests") or {}).items() if amount is not None}
    cards = {name: str(count) for name, count in resources_of(member).items()}
    found = {"limits": {**limits, **cards}, "requests": {**requests, **asked_of(order.request), **cards}}
    return {name: amounts for name, amounts in found.items() if amounts}


def _child(parent: Object, name: str) -> Object:
    if not isinstance(parent.get(name), dict):
        parent[name] = {}
    child: Object = parent[name]
    return child


def _extend(parent: Object, name: str, more: Mapping[str, str]) -> None:
    parent[name] = {**(parent.get(name) or {}), **more}
