"""The demo on Kubernetes: the same scenes, and what the cluster itself says of them."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from dsec_blocks.model.gangs import GangState
from dsec_blocks.model.names import LABEL_ATTEMPT, LABEL_RUN_ID
from dsec_deployments.control_plane import process_nodes
from dsec_deployments.control_plane.pool import environment
from dsec_deployments.demo import scenes
from dsec_deployments.demo.stage import GPUS_PER_NODE, NODES, POOL, Stage
from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.naming import LABEL_POOL

Object = dict[str, Any]
PODS, JOBS = "/api/v1/pods", "/apis/batch/v1/jobs"


def the_gangs_are_pods(stage: Stage) -> None:
    """The API server says the same: each member is one pod, and no card is in two"""
    members = {
        (gang.run_id, str(gang.attempt), member.node)
        for gang in stage.ledger.gangs(POOL, {GangState.RUNNING})
        for member in (gang.placement.members if gang.placement else ())
    }
    pods = [pod for pod in _of_the_pool(stage, PODS) if pod["status"].get("phase") == "Running"]
    there = sorted(_member(pod) for pod in pods)
    stage.claims.make(
        "each member of a running gang is one running pod, on the node that the ledger says",
        bool(members) and there == sorted(members),
        len(there),
        "pods",
    )
    cards = process_nodes.cards(stage.home)
    held = Counter(card for pod in pods for card in cards.get(pod["metadata"]["uid"], ()))
    stage.claims.make(
        "the kubelets gave out every card, none of them twice",
        len(held) == NODES * GPUS_PER_NODE and max(held.values()) == 1,
        len(held),
        "cards",
    )


def nothing_is_left_on_the_cluster(stage: Stage) -> None:
    """Nothing of the pool is left on the cluster"""
    stage.wait("the last pods to leave", lambda: not _left(stage), seconds=30)
    left = _left(stage)
    stage.claims.make("afterwards no Job and no pod of the pool is on the cluster", not left, left, "objects")


def _left(stage: Stage) -> int:
    return sum(len(_of_the_pool(stage, path)) for path in (JOBS, PODS))


def _of_the_pool(stage: Stage, path: str) -> list[Object]:
    async def ask() -> list[Object]:
        async with await Api.connect(ClusterAccess(kubeconfig=environment(stage.home)["KUBECONFIG"])) as api:
            found, _ = await api.list(path, labels=f"{LABEL_POOL}={POOL}")
            return found

    return asyncio.run(ask())


def _member(pod: Object) -> tuple[str, str, str]:
    labels = pod["metadata"]["labels"]
    return labels[LABEL_RUN_ID], labels[LABEL_ATTEMPT], pod["spec"]["nodeName"]


SCENES_IN_PODS: list[Callable[[Stage], None]] = [
    scenes.set_up_teams_and_deployments,
    scenes.a_gang_that_never_fits,
    scenes.the_same_training_uninterrupted,
    scenes.a_full_pool,
    the_gangs_are_pods,
    scenes.an_urgent_gang_arrives,
    scenes.the_fine_tune_gives_way,
    scenes.the_worker_is_killed,
    scenes.everything_ends_well,
    nothing_is_left_on_the_cluster,
]
