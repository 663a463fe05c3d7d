"""A gang's Jobs: what is ours in them whatever the template says, and what of the template stays."""

import json
from dataclasses import replace
from typing import Any

import pytest

from dsec_blocks.model.errors import ClusterError, InvalidRequest
from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.manifest import jobs_of, resources_of
from dsec_workers.clusters.kubernetes.naming import (
    LABEL_POOL,
    LABEL_TEAM,
    job_name,
    key_of,
    member_of,
    members_of,
    placement_of,
)
from dsec_workers.clusters.kubernetes.settings import KubernetesSettings
from dsec_workers.clusters.local.layout import order_from_json
from dsec_workers.clusters.protocol import GangKey
from tests.workers.clusters.kubernetes.conftest import GRACE_SECONDS, order_on, places

SETTINGS = KubernetesSettings(pool="gpus", priority_class="dsec-gang", service_account="dsec-member")


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = job["spec"]["template"]["spec"]
    return spec


def env_of(job: dict[str, Any]) -> dict[str, Any]:
    """What the member's outpost has in the end."""
    entries = pod_of(job)["containers"][0]["env"]
    said = {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in entries}
    return {**said, **json.loads(said["DSEC_ORDER"].replace("$$", "$"))["variables"]}


def test_each_member_is_a_job_on_its_node_with_its_own_count_of_cards() -> None:
    order = order_on(["a", "b"])
    uneven = (order.placement.members[0], MemberPlacement(node="b", devices=places("b", 1, 3, 5)))
    order = order_on(["a", "b"], placement=Placement(members=uneven))
    jobs = jobs_of(order, SETTINGS, namespace="team")
    assert [pod_of(job)["nodeName"] for job in jobs] == ["a", "b"]
    assert [pod_of(job)["containers"][0]["resources"]["limits"] for job in jobs] == [
        {"nvidia.com/gpu": "1"},
        {"nvidia.com/gpu": "3"},
    ]
    for index, job in enumerate(jobs):
        assert job["metadata"]["name"] == job_name(order.key, index)
        assert (key_of(job), member_of(job), members_of(job)) == (order.key, index, 2)
        assert placement_of(job) == order.placement.members[index]


def test_no_job_is_ever_tried_again_or_collected_before_its_exit_is_recorded() -> None:
    template = {"spec": {"backoffLimit": 6, "ttlSecondsAfterFinished": 5}}
    (job,) = jobs_of(order_on(["a"]), SETTINGS, namespace="team", template=template)
    assert job["spec"]["backoffLimit"] == 0
    assert job["spec"]["podReplacementPolicy"] == "Failed"
    assert "ttlSecondsAfterFinished" not in job["spec"]
    assert pod_of(job)["restartPolicy"] == "Never"
    assert pod_of(job)["priorityClassName"] == "dsec-gang"
    assert pod_of(job)["terminationGracePeriodSeconds"] == GRACE_SECONDS + SETTINGS.upload_seconds


def test_a_template_of_prefect_kubernetes_carries_over() -> None:
    template = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": "x-", "labels": {"cost-centre": "7"}, "annotations": {"note": "kept"}},
        "spec": {
            "template": {
                "spec": {
                    "parallelism": 1,
                    "completions": 1,
                    "serviceAccountName": "users-own",
                    "tolerations": [{"key": "gpu", "operator": "Exists"}],
                    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
                    "containers": [
                        {
                            "name": "prefect-job",
                            "image": "team/image:3",
                            "imagePullPolicy": "Always",
                            "args": ["prefect", "flow-run", "execute"],
                            "env": [{"name": "MINE", "value": "1"}, {"name": "DSEC_MEMBER", "value": "9"}],
                            "envFrom": [{"secretRef": {"name": "buckets"}}],
                            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                            "resources": {"requests": {"cpu": "4", "memory": None}},
                        },
                        {"name": "sidecar", "image": "logs:1"},
                    ],
                }
            }
        },
    }
    (job,) = jobs_of(order_on(["a"]), SETTINGS, namespace="team", template=template)
    spec, container = pod_of(job), pod_of(job)["containers"][0]
    assert job["metadata"]["labels"]["cost-centre"] == "7" and job["metadata"]["annotations"]["note"] == "kept"
    assert "generateName" not in job["metadata"]
    assert spec["serviceAccountName"] == "users-own"
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}, *SETTINGS.tolerations]
    assert (container["image"], container["imagePullPolicy"]) == ("team/image:3", "Always")
    assert container["command"][-1] == "dsec_workers.clusters.kubernetes.outpost" and "args" not in container
    assert env_of(job)["MINE"] == "1" and env_of(job)["DSEC_MEMBER"] == "0"
    assert [each["name"] for each in container["env"]] == ["MINE", "DSEC_ORDER", "DSEC_OUTPOST_ADDRESS"]
    assert [each["secretRef"]["name"] for each in container["envFrom"]] == ["buckets", "dsec-prefect"]
    assert container["resources"]["requests"] == {"cpu": "4", "nvidia.com/gpu": "1"}
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/data", "/dsec", "/dev/shm"]
    assert [each["name"] for each in spec["containers"]] == ["prefect-job", "sidecar"]
    # A claim has to be bound by kube-scheduler: it may choose this node only.
    assert "nodeName" not in spec
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["a"]}]


def test_the_labels_of_a_run_and_its_team_are_on_its_jobs_and_pods_and_never_in_the_place_of_ours() -> None:
    wanted = {
        "cost-centre": "7", "prefect.io/flow-run-name": "my run!", "dsec.io/run-id": "forged", "no key": "x",
        LABEL_POOL: "other",
    }  # fmt: skip
    order = order_on(["a", "b"], team="vision / 2", labels=wanted)
    template = {"metadata": {"labels": {"cost-centre": "1", "kept": "yes"}}}
    for job in jobs_of(order, SETTINGS, namespace="team", template=template):
        for labels in (job["metadata"]["labels"], job["spec"]["template"]["metadata"]["labels"]):
            assert (labels["cost-centre"], labels["prefect.io/flow-run-name"]) == ("7", "my-run")
            assert (labels[LABEL_TEAM], labels[LABEL_POOL], labels["dsec.io/run-id"]) == (
                "vision-2", "gpus", order.key.run_id,
            )  # fmt: skip
            assert "no key" not in labels
        assert job["metadata"]["labels"]["kept"] == "yes"
    (job,) = jobs_of(order_on(["a"]), SETTINGS, namespace="team")
    assert LABEL_TEAM not in job["metadata"]["labels"]


def test_the_key_of_prefect_is_in_no_job_and_the_whole_placement_only_in_the_first() -> None:
    order = order_on(["a", "b"], env={"PREFECT_API_KEY": "secret", "PRICE": "$(HOME) costs $5"})
    jobs = jobs_of(order, SETTINGS, namespace="team")
    assert "secret" not in json.dumps(jobs).replace("secretRef", "")
    told = [order_from_json(json.loads(env_of(job)["DSEC_ORDER"].replace("$$", "$"))) for job in jobs]
    assert told[0].placement == order.placement and not told[1].placement.members
    assert told[0].env == {"PRICE": "$(HOME) costs $5"}


def test_of_a_secret_that_holds_more_than_ours_members_are_given_no_more_than_ours() -> None:
    template = {"spec": {"template": {"spec": {"containers": [{"env": {"PREFECT_API_KEY": "in plain text"}}]}}}}
    (job,) = jobs_of(order_on(["a"]), SETTINGS, namespace="team", template=template, whole_secret=False)
    assert "envFrom" not in pod_of(job)["containers"][0]
    references = [each["secretKeyRef"] for each in env_of(job).values() if "secretKeyRef" in each]
    assert {each["name"] for each in references} == {"dsec-prefect"}
    assert {each["key"]: each.get("optional") for each in references} == {
        "DSEC_CHANNEL_KEY": None, "PREFECT_API_URL": True, "PREFECT_API_KEY": True, "PREFECT_API_AUTH_STRING": True,
    }  # fmt: skip


def test_a_gang_that_names_no_checkpoint_store_gets_the_pools_and_the_users_own_wins() -> None:
    settings = replace(SETTINGS, store="s3://bucket/checkpoints")
    template = {"spec": {"template": {"spec": {"containers": [{"env": {"DSEC_STORE": "s3://mine/x"}}]}}}}
    jobs = jobs_of(order_on(["a", "b"]), settings, namespace="team")
    assert [env_of(job)["DSEC_STORE"] for job in jobs] == ["s3://bucket/checkpoints"] * 2
    (job,) = jobs_of(order_on(["a"]), settings, namespace="team", template=template)
    assert env_of(job)["DSEC_STORE"] == "s3://mine/x"
    (job,) = jobs_of(order_on(["a"]), SETTINGS, namespace="team")
    assert "DSEC_STORE" not in env_of(job)


def test_a_gangs_pods_find_the_agents_cache_of_their_node_and_the_users_own_wins() -> None:
    settings = replace(SETTINGS, cache_path="/var/lib/dsec/cache")
    jobs = jobs_of(order_on(["a", "b"]), settings, namespace="team")
    for job in jobs:
        (volume,) = [each for each in pod_of(job)["volumes"] if each["name"] == "dsec-cache"]
        assert volume["hostPath"] == {"path": "/var/lib/dsec/cache", "type": "DirectoryOrCreate"}
        assert {"name": "dsec-cache", "mountPath": "/var/lib/dsec/cache"} in pod_of(job)["containers"][0][
            "volumeMounts"
        ]
        assert env_of(job)["DSEC_CACHE_DIR"] == "/var/lib/dsec/cache"
        assert not [name for name in env_of(job) if "LEDGER" in name], "a pod never gets the ledger"
    template = {"spec": {"template": {"spec": {"containers": [{"env": {"DSEC_CACHE_DIR": "/mine"}}]}}}}
    (job,) = jobs_of(order_on(["a"]), settings, namespace="team", template=template)
    assert env_of(job)["DSEC_CACHE_DIR"] == "/mine"
    (job,) = jobs_of(order_on(["a"]), SETTINGS, namespace="team")
    assert "DSEC_CACHE_DIR" not in env_of(job) and "hostPath" not in json.dumps(job)


@pytest.mark.parametrize("path", ["cache", "/", "/var/../etc"])
def test_a_cache_that_is_no_folder_of_a_node_is_refused_at_the_workers_start(path: str) -> None:
    with pytest.raises(InvalidRequest, match=r"DSEC_CACHE_HOST_PATH: .* is no folder on a node"):
        KubernetesSettings.from_environment("gpus", access=ClusterAccess(), environment={"DSEC_CACHE_HOST_PATH": path})
    told = {"DSEC_CACHE_HOST_PATH": "/var/lib/dsec/cache/"}
    found = KubernetesSettings.from_environment("gpus", access=ClusterAccess(), environment=told)
    assert found.cache_path == "/var/lib/dsec/cache"


CLAIM = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}


@pytest.mark.parametrize(
    ("spec", "claims"),
    [
        ({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]}, True),
        ({"volumes": [{"name": "fast", "ephemeral": {"volumeClaimTemplate": CLAIM}}]}, True),
        ({"resourceClaims": [{"name": "nic", "resourceClaimTemplateName": "nic"}]}, True),
        ({"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "csi": {"driver": "secrets"}}]}, False),
    ],
)
def test_who_claims_something_is_bound_by_kube_scheduler_and_nobody_else(spec: dict[str, Any], claims: bool) -> None:
    template = {"spec": {"template": {"spec": spec}}}
    (job,) = jobs_of(order_on(["a"]), SETTINGS, namespace="team", template=template)
    assert ("nodeName" not in pod_of(job), "affinity" in pod_of(job)) == (claims, claims)


def test_images_from_a_private_registry_are_pulled_with_the_pools_secrets_beside_the_templates() -> None:
    settings = replace(SETTINGS, pull_secrets=("registry", "mine"))
    template = {"spec": {"template": {"spec": {"imagePullSecrets": [{"name": "mine"}]}}}}
    (job,) = jobs_of(order_on(["a"]), settings, namespace="team", template=template)
    assert pod_of(job)["imagePullSecrets"] == [{"name": "mine"}, {"name": "registry"}]
    (job,) = jobs_of(order_on(["a"]), SETTINGS, namespace="team")
    assert "imagePullSecrets" not in pod_of(job)


def test_names_fit_and_tell_attempts_and_members_apart() -> None:
    long = "a-very-long-run-id-that-nobody-would-give-but-somebody-might-" * 3
    names = {job_name(GangKey(long, attempt), member) for attempt in (1, 11) for member in (1, 11)}
    assert len(names) == 4 and all(len(name) <= 63 for name in names)


def test_a_place_of_another_pools_ledger_is_refused() -> None:
    with pytest.raises(ClusterError, match="is no place for a card on a"):
        resources_of(MemberPlacement(node="a", devices=("GPU-declared-0",)))
