"""Quotas and limit ranges, read as the API server reads them; tables. What the server itself says: `test_allowance`."""

from decimal import Decimal
from typing import Any

import pytest

from dsec_workers.clusters.kubernetes import limit_ranges, quotas


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A pod template whose containers have these resources."""
    made = [{"name": f"c{index}", "resources": resources} for index, resources in enumerate(containers)]
    return {"spec": {"containers": made, **spec}}


def quota(hard: dict[str, str], *, used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "q"}, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


def limit_range(kind: str = "Container", **limits: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"name": "r"}, "spec": {"limits": [{"type": kind, **limits}]}}


def for_class(operator: str, *values: str) -> dict[str, Any]:
    expression = {"scopeName": "PriorityClass", "operator": operator, "values": list(values)}
    return {"scopeSelector": {"matchExpressions": [expression]}}


GPU = {"limits": {"nvidia.com/gpu": "4"}}
OURS = {"priorityClassName": "dsec-gang"}


def test_a_pod_counts_by_requests_limits_and_plain_names_and_cards_by_requests_alone() -> None:
    both = pod({"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi", **GPU["limits"]}}, {"limits": {"cpu": "2"}})
    assert quotas.charge(both) == {
        "pods": 1, "count/pods": 1, "count/jobs.batch": 1,
        "requests.cpu": Decimal("2.5"), "cpu": Decimal("2.5"), "limits.cpu": 2,
        "requests.memory": 2**30, "memory": 2**30, "limits.memory": 2**30,
        "requests.nvidia.com/gpu": 4,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "fields", "counts"),
    [
        pytest.param({}, {}, True, id="no scope"),
        pytest.param({"scopes": ["NotTerminating"]}, {}, True, id="a pod without a deadline"),
        pytest.param({"scopes": ["NotTerminating"]}, {"activeDeadlineSeconds": 5}, False, id="one with a deadline"),
        pytest.param({"scopes": ["BestEffort"]}, {}, True, id="cards alone make no guarantee"),
        pytest.param({"scopes": ["NotBestEffort"]}, {}, False, id="so this quota is for others"),
        pytest.param({"scopes": ["CrossNamespacePodAffinity"]}, {}, False, id="a scope that is not ours"),
        pytest.param(for_class("In", "dsec-gang"), OURS, True, id="the priority class of gangs"),
        pytest.param(for_class("In", "web"), OURS, False, id="the priority class of others"),
        pytest.param(for_class("NotIn", "web"), OURS, True, id="all classes but that of others"),
        pytest.param(for_class("DoesNotExist"), OURS, False, id="pods without a class"),
    ],
)
def test_which_quotas_a_pod_counts_for(spec: dict[str, Any], fields: dict[str, Any], counts: bool) -> None:
    found = list(quotas.counting(pod(GPU, **fields), [quota({"pods": "1"}, **spec)]))
    assert bool(found) is counts


@pytest.mark.parametrize(
    ("used", "besides", "needed", "said"),
    [
        pytest.param("8", 0, 8, None, id="exactly the rest"),
        pytest.param("12", 0, 8, "requests.nvidia.com/gpu: 12 of 16 used", id="too little is left"),
        pytest.param("8", 4, 8, "requests.nvidia.com/gpu: 12 of 16 used", id="pods on their way count"),
        pytest.param("16", -8, 8, None, id="pods that leave do not"),
        pytest.param("0", 0, 17, "requests.nvidia.com/gpu: 16 in all, 17 needed", id="more than there ever is"),
    ],
)
def test_what_a_quota_lacks(used: str, besides: int, needed: int, said: str | None) -> None:
    name = "requests.nvidia.com/gpu"
    found = quotas.shortage(quota({name: "16"}, used={name: used}), {name: Decimal(needed)}, {name: Decimal(besides)})
    assert (None if found is None else str(found)) == said


def test_a_quota_of_processors_wants_every_container_to_say_how_many() -> None:
    says = {"requests": {"cpu": "1"}}
    assert quotas.unsaid(pod(says, GPU), quota({"requests.cpu": "10"})) == "requests.cpu"
    assert quotas.unsaid(pod(says), quota({"limits.cpu": "10"})) == "limits.cpu"
    assert quotas.unsaid(pod(says), quota({"cpu": "10", "requests.nvidia.com/gpu": "1"})) is None


def test_limit_ranges_give_to_containers_what_they_do_not_say() -> None:
    given = limit_range(default={"cpu": "2", "memory": "1Gi"}, defaultRequest={"cpu": "1", "memory": "512Mi"})
    filled = limit_ranges.with_defaults(pod({"limits": {"memory": "4Gi"}}), [given])
    assert filled["spec"]["containers"][0]["resources"] == {
        "limits": {"cpu": "2", "memory": "4Gi"},
        "requests": {"cpu": "1", "memory": "4Gi"},
    }


@pytest.mark.parametrize(
    ("rule", "resources", "why"),
    [
        ({"max": {"nvidia.com/gpu": "4"}}, [GPU], None),
        (
            {"max": {"nvidia.com/gpu": "2"}},
            [GPU],
            "limit range r allows a container at most 2 nvidia.com/gpu, and 4 are asked for",
        ),
        ({"max": {"cpu": "2"}}, [{"requests": {"cpu": "1"}}], "no limit is set; set limits.cpu"),
        ({"min": {"memory": "1Gi"}}, [GPU], "no less than 1Gi memory, and none is asked for"),
        ({"min": {"cpu": "2"}}, [{"requests": {"cpu": "1"}}], "no less than 2 cpu, and 1 are asked for"),
        ({"kind": "Pod", "max": {"nvidia.com/gpu": "6"}}, [GPU, GPU], "allows a pod at most 6 nvidia.com/gpu, and 8"),
        (
            {"maxLimitRequestRatio": {"cpu": "2"}},
            [{"requests": {"cpu": "1"}, "limits": {"cpu": "3"}}],
            "a limit of at most 2 times its request of cpu",
        ),
    ],
)
def test_what_a_limit_range_refuses(rule: dict[str, Any], resources: list[dict[str, Any]], why: str | None) -> None:
    found = limit_ranges.refusal(pod(*resources), [limit_range(**rule)])
    assert (found is None) if why is None else (found is not None and why in found)
