"""What is told of a pool agrees with the records it is made of."""

from typing import Any

import pytest

from dsec_blocks.ledger import DeviceCount, Figures
from dsec_blocks.model.gangs import Gang, GangState
from dsec_blocks.model.requests import GangRequest
from dsec_blocks.model.teams import Team
from dsec_workers.lifecycle.pool_metrics import has_room, pool_metrics, waits_seconds

NOW = 10_000.0
FIGURES = Figures(
    devices=[
        DeviceCount(model="H100", health="healthy", total=8, held=5, promised=1),
        DeviceCount(model="H100", health="frozen", total=1, held=0, promised=0),
        DeviceCount(model="A100", health="closed", total=4, held=0, promised=0),
    ],
    held_by_team={("vision", "H100"): 5},
    device_seconds={("vision", "H100"): 3600.0, ("vision", "A100"): 100.0},
    leaked=0,
    reported_at={"n1": 9_990.0},
)


def gang(run_id: str, *, team: str = "vision", state: GangState = GangState.WAITING, **fields: Any) -> Gang:
    request = GangRequest(**{"devices_per_node": 2, **fields.pop("request", {})})
    return Gang(
        run_id=run_id,
        name=run_id,
        pool="gpus",
        team=team,
        request=request,
        state=state,
        **{"submitted_at": 9_000.0, "eligible_at": 9_000.0, **fields},
    )


def samples(*gangs: Gang, teams: tuple[Team, ...] = (Team(name="vision", nominal_devices=4, borrow_devices=2),)) -> Any:
    families = pool_metrics(
        "gpus",
        FIGURES,
        gangs,
        {team.name: team for team in teams},
        model_weights={"H100": 2.0},
        now=NOW,
    )
    found: dict[tuple[str, ...], float] = {}
    for family in families:
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("pool") == "gpus"
            found[(sample.name, *labels.values())] = sample.value
    return found


def test_devices_are_told_by_model_and_health_and_only_healthy_ones_are_free() -> None:
    found = samples()
    assert found["dsec_pool_devices", "H100", "healthy"] == 8
    assert found["dsec_pool_devices_held", "H100", "healthy"] == 5
    assert found["dsec_pool_devices_promised", "H100", "healthy"] == 1
    assert found["dsec_pool_devices_free", "H100"] == 3
    assert found["dsec_pool_devices_free", "A100"] == 0
    assert found["dsec_reservations_leaked",] == 0
    assert found["dsec_agent_last_report_timestamp_seconds", "n1"] == 9_990.0


def test_who_waits_is_told_by_team_and_reason_with_the_longest_wait_and_what_is_asked_for() -> None:
    found = samples(
        gang("a", reason_code="waits-for-capacity", request={"nodes": 8}),
        gang("b", reason_code="fragmented", eligible_at=9_900.0),
        gang("c", reason_code="fragmented", eligible_at=9_500.0, team="speech"),
        gang("d"),
        gang("e", state=GangState.RUNNING),
    )
    assert found["dsec_gangs_waiting", "vision", "waits-for-capacity"] == 1
    assert found["dsec_gangs_waiting", "vision", "new"] == 1
    assert found["dsec_gangs_waiting_devices", "vision"] == 20
    assert found["dsec_queue_longest_wait_seconds", "vision", "fragmented"] == 100
    assert found["dsec_queue_longest_wait_seconds", "speech", "fragmented"] == 500
    assert (found["dsec_gangs", "running"], found["dsec_gangs", "waiting"]) == (1, 4)
    assert found["dsec_queue_longest_wait_despite_room_seconds", "vision", "fragmented"] == 100
    assert ("dsec_queue_longest_wait_despite_room_seconds", "vision", "waits-for-capacity") not in found, "16 > 3 free"


def test_a_team_is_told_what_is_its_own_what_it_holds_and_what_that_cost() -> None:
    found = samples(teams=(Team(name="vision", nominal_devices=4, borrow_devices=2), Team(name="b", nominal_devices=1)))
    assert found["dsec_team_quota_devices", "vision"] == 4
    assert found["dsec_team_limit_devices", "vision"] == 6
    assert ("dsec_team_limit_devices", "b") not in found, "it has no limit"
    assert found["dsec_team_held_devices", "vision", "H100"] == 5
    assert found["dsec_team_held_devices", "b", ""] == 0
    assert found["dsec_team_gpu_seconds_total", "vision", "H100"] == 3600
    assert found["dsec_team_cost_gpu_seconds_total", "vision"] == 2 * 3600 + 100


def test_the_time_that_an_evicted_gang_ran_is_no_wait() -> None:
    assert waits_seconds(gang("new"), NOW) == 1000
    assert waits_seconds(gang("evicted", outcome={"kind": "evicted", "at": 9_940.0}), NOW) == 60


@pytest.mark.parametrize(
    ("request_fields", "fits"),
    [
        ({"nodes": 1, "devices_per_node": 3}, True),
        ({"nodes": 2, "devices_per_node": 2}, False),
        ({"nodes": 2, "min_nodes": 1, "devices_per_node": 2}, True),
        ({"devices_per_node": 1, "gpu_model": "A100"}, False),
        ({"devices_per_node": 1, "gpu_model": "A100|H100"}, True),
    ],
)
def test_room_is_as_many_free_devices_as_a_gang_needs_in_one_model_that_will_do(
    request_fields: dict[str, Any], fits: bool
) -> None:
    assert has_room(gang("g", request=request_fields), {"H100": 3, "A100": 0}) is fits
