"""What our objects are called, and the labels and annotations by which a successor finds them again.

A name says run, attempt and member, and nothing else: a create whose answer was lost comes back as "already exists",
which means "adopt it". What a name cannot hold (the node, the places for cards) is an annotation beside it.
"""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from dsec_blocks.model import gang_protocol
from dsec_blocks.model.gangs import MemberPlacement
from dsec_blocks.model.names import LABEL_ATTEMPT, LABEL_RUN_ID
from dsec_workers.clusters.protocol import GangKey

LABEL_POOL = "dsec.io/pool"
LABEL_MEMBER = "dsec.io/member"
LABEL_MEMBERS = "dsec.io/members"
LABEL_TEAM = "dsec.io/team"
ANNOTATION_NODE = "dsec.io/node"
ANNOTATION_DEVICES = "dsec.io/devices"
ANNOTATION_NAME = "dsec.io/run-name"
ANNOTATION_START_TIMEOUT = "dsec.io/start-timeout-seconds"
ANNOTATION_GRACE = "dsec.io/grace-seconds"
ANNOTATION_PROTOCOL = "dsec.io/gang-protocol"
"""The version of what the gang and its worker say to each other (`gang_protocol`)."""
FIELD_MANAGER = "dsec"
_UNFIT = re.compile(r"[^a-z0-9-]+")
_LABEL_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")
_LONGEST_NAME = 63
OURS = "dsec.io/"
"""How the labels and annotations begin that are ours alone."""
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


def job_name(key: GangKey, member: int) -> str:
    """The Job of one member of one attempt."""
    run = _UNFIT.sub("-", key.run_id.lower()).strip("-")
    tail = f"-{key.attempt}-{member}"
    return f"dsec-{run[: _LONGEST_NAME - len('dsec-') - len(tail)]}{tail}"


def gang_labels(key: GangKey, *, pool: str, members: int) -> dict[str, str]:
    """The labels that all objects of one attempt carry."""
    return {
        LABEL_POOL: label_value(pool),
        LABEL_RUN_ID: key.run_id,
        LABEL_ATTEMPT: str(key.attempt),
        LABEL_MEMBERS: str(members),
    }


def label_value(text: str) -> str:
    """`text` as a label may hold it."""
    return _LABEL_UNFIT.sub("-", text)[:_LONGEST_NAME].strip("-_.")


def labels_of_run(given: Mapping[str, str], *, team: str) -> dict[str, str]:
    """What a run's own form and Prefect want on its objects, and whose it is; what no label may be is left out."""
    found = {
        key: label_value(str(value))
        for key, value in given.items()
        if _LABEL_KEY.fullmatch(key) and not key.startswith(OURS)
    }
    return {**found, **({LABEL_TEAM: label_value(team)} if team else {})}


def key_of(item: Mapping[str, Any]) -> GangKey | None:
    """The attempt that an object of ours belongs to; None when its labels name none, or are none that we write."""
    labels = item["metadata"].get("labels") or {}
    run, attempt = labels.get(LABEL_RUN_ID), labels.get(LABEL_ATTEMPT) or ""
    numbers = (attempt, labels.get(LABEL_MEMBER) or "0", labels.get(LABEL_MEMBERS) or "1")
    return GangKey(run, int(attempt)) if run and all(map(str.isdigit, numbers)) else None


def member_of(item: Mapping[str, Any]) -> int:
    """Which member of its gang an object of ours is."""
    return int((item["metadata"].get("labels") or {}).get(LABEL_MEMBER) or 0)


def members_of(item: Mapping[str, Any]) -> int:
    """How many members the gang of an object of ours has."""
    return int((item["metadata"].get("labels") or {}).get(LABEL_MEMBERS) or 1)


def placement_annotations(member: MemberPlacement) -> dict[str, str]:
    """Where one member was put: `placement_of` is the inverse."""
    return {ANNOTATION_NODE: member.node, ANNOTATION_DEVICES: json.dumps(list(member.devices), separators=(",", ":"))}


def placement_of(item: Mapping[str, Any]) -> MemberPlacement:
    """Where the member of this Job was put."""
    annotations = item["metadata"].get("annotations") or {}
    try:
        devices = list(map(str, json.loads(annotations.get(ANNOTATION_DEVICES) or "[]")))
    except (ValueError, TypeError):  # somebody has written into it; what a node lacks then its kubelet says
        devices = []
    return MemberPlacement(node=annotations.get(ANNOTATION_NODE) or "", devices=tuple(devices))


def refuse_newer(item: Mapping[str, Any]) -> None:
    """Raise `GangTooNew` when a newer DSec has made this Job or pod."""
    said = (item["metadata"].get("annotations") or {}).get(ANNOTATION_PROTOCOL)
    what = f"{item.get('kind') or 'Pod'} {item['metadata'].get('namespace')}/{item['metadata'].get('name')}"
    gang_protocol.refuse_newer({gang_protocol.FIELD: said}, what, upgrade="this worker")


def timing_of(item: Mapping[str, Any]) -> tuple[float, float, float]:
    """When an object of ours was created (seconds since the epoch), its gang's start timeout and its grace."""
    metadata = item["metadata"]
    annotations = metadata.get("annotations") or {}
    created = datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()
    return created, _seconds(annotations.get(ANNOTATION_START_TIMEOUT)), _seconds(annotations.get(ANNOTATION_GRACE))


def _seconds(text: str | None) -> float:
    try:
        return max(0.0, float(text or 0))
    except ValueError:
        return 0.0
