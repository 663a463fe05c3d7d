"""A real Prometheus scrapes real workers: what the rules and boards ask for is answered."""

from pathlib import Path

import pytest

from dsec_blocks.model.gangs import GangState
from tests.deployments.test_monitoring import BOARDS, RULES, questions
from tests.fixtures.prometheus import program, prometheus
from tests.integration.site import Site
from tests.integration.test_metrics import Told

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def programs() -> None:
    """Before a site is made for nothing."""
    program("prometheus")


def test_prometheus_sees_who_leads_who_holds_and_who_waits_and_every_rule_and_board_is_answered(
    site: Site, tmp_path: Path
) -> None:
    site.nodes, site.gpus = 1, 2
    site.team("vision", nominal_devices=2)
    leader = Told(site)
    site.wait("a leader", lambda: leader.json("/ready").get("role") == "leader")
    standby = Told(site)
    run = site.submit(
        "sleeper",
        parameters={"where": str(tmp_path / "notes"), "seconds": 600},
        queue="vision",
        devices_per_node=2,
        grace=1,
    )
    site.wait_gang(run, GangState.RUNNING)
    site.submit("hello", queue="vision", devices_per_node=2)
    targets = [f"127.0.0.1:{each.port}" for each in (leader, standby)]
    with prometheus(tmp_path, targets=targets, rules=[RULES]) as server:

        def value(expression: str) -> float | None:
            found = server.query(expression)
            return float(found[0]["value"][1]) if found else None

        site.wait("both workers to be scraped", lambda: value("count(dsec_leader)") == 2)
        leads = {each["metric"]["instance"]: each["value"][1] for each in server.query("dsec_leader")}
        assert leads == {targets[0]: "1", targets[1]: "0"}
        assert value(f'sum(dsec_leader{{pool="{site.pool}"}})') == 1
        site.wait("the run to be seen", lambda: value('sum(dsec_team_held_devices{team="vision"})') == 2)
        site.wait("the wait to be seen", lambda: value('sum(dsec_gangs_waiting{team="vision"})') == 1)
        site.wait("rules to be evaluated", lambda: value('pool_team:dsec_quota_used:ratio{team="vision"}') == 1)
        for board in BOARDS:
            for expression in questions(board, pool=site.pool, team="vision"):
                server.query(expression)
        site.wait("every rule to be evaluated", lambda: all(rule["health"] == "ok" for rule in server.rules()))
        site.stop_worker(leader.process)
        site.wait("the standby to lead", lambda: value(f'dsec_leader{{instance="{targets[1]}"}}') == 1)
