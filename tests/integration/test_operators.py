"""Operators on a real server: what they order through the command line happens, stands, is logged, and ends."""

import json
import time

import pytest

from dsec_blocks.model.gangs import GangState
from tests.deployments.test_command import dsec, one_line
from tests.integration.site import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def ordered(site: Site, *words: str) -> str:
    done = dsec(
        *words, "--pool", site.pool, home=site.home, DSEC_LEDGER_URL=site.ledger_url, PREFECT_API_URL=site.api_url
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(site: Site, *words: str) -> str:
    done = dsec(
        *words, "--pool", site.pool, home=site.home, DSEC_LEDGER_URL=site.ledger_url, PREFECT_API_URL=site.api_url
    )
    assert done.returncode != 0
    return one_line(done)


def logged(site: Site, stage: str, outcome: str) -> str:
    found = [d.why for d in site.ledger.decisions(site.pool, limit=1000) if (d.stage, d.outcome) == (stage, outcome)]
    assert found, f"no decision {stage}/{outcome}"
    return found[-1]


def test_freezing_holding_and_starting_by_order_and_a_policy_set_while_the_worker_runs(site: Site) -> None:
    site.start_worker()
    site.wait("the nodes", lambda: site.ledger.nodes(site.pool))
    site.team("vision", nominal_devices=4)
    assert "admission to team vision is frozen" in ordered(site, "freeze", "--team", "vision", "--why", "audit")
    held = site.submit("hello", queue="vision", devices_per_node=1)
    assert "admission to team vision is frozen: frozen by" in site.wait_state(held, "AwaitingGPUs")[2]
    assert "freeze" in ordered(site, "orders") and "audit" in ordered(site, "pool")
    assert logged(site, "order", "freeze").endswith(": audit")

    ordered(site, "override", held, "--admit", "--why", "it is harmless")
    site.wait_state(held, "COMPLETED", seconds=60)
    assert logged(site, "order", "override").endswith(": it is harmless")
    assert "override" not in ordered(site, "orders"), "one admission, and the order is over"

    waits = site.submit("hello", queue="vision", devices_per_node=1)
    site.wait_state(waits, "AwaitingGPUs")
    ordered(site, "override", waits, "--hold", "--why", "data is missing")
    ordered(site, "thaw", "--team", "vision")
    row = site.wait("to be held back", lambda: held_row(site, waits))
    assert row["reason"].startswith("held back by") and row["reason"].endswith(": data is missing")

    policy = site.home / "policy.yaml"
    policy.write_text("w_age: 4\n")
    assert "policy 2 is in force: w_age: 4.0" in ordered(site, "policy", "set", str(policy), "--why", "shorter waits")
    site.wait("the policy", lambda: any(d.stage == "policy" for d in site.ledger.decisions(site.pool, limit=1000)))
    assert logged(site, "policy", "in force").endswith(": shorter waits")
    trial = site.home / "trial.yaml"
    trial.write_text("max_admissions: 0\n")
    assert "policy 3 runs in shadow" in ordered(site, "policy", "shadow", str(trial), "--why", "trial")
    site.wait("the shadow", lambda: any(d.outcome == "in shadow" for d in site.ledger.decisions(site.pool, limit=1000)))
    ordered(site, "override", waits, "--lift", "--why", "data came")
    site.wait_state(waits, "COMPLETED", seconds=60)
    entries = site.ledger.decisions(site.pool, run_id=waits, limit=1000)
    assert [d.policy_version for d in entries if (d.stage, d.outcome) == ("plan", "admit")] == ["2"]
    assert [d.policy_version for d in entries if d.stage == "shadow-policy"] == ["3"]
    assert "would hold" in ordered(site, "policy", "diff")
    versions = json.loads(ordered(site, "policy", "history", "--json"))
    assert [(v["version"], v["role"]) for v in versions] == [(3, "shadow"), (2, "active")]

    incident = site.home / "incident.json"
    assert "2 nodes" in ordered(site, "incident", "capture", str(incident))
    assert json.loads(incident.read_text())["policy"]["version"] == "2"


def held_row(site: Site, run_id: str) -> "dict[str, str] | None":
    rows = json.loads(ordered(site, "queue", "--json"))
    return next((row for row in rows if row["run_id"] == run_id and "held back" in row["reason"]), None)


def test_a_drain_by_a_deadline_checkpoints_its_gangs_in_time_and_a_reservation_keeps_others_off(site: Site) -> None:
    notes = str(site.home / "notes")
    site.start_worker()
    site.wait("the nodes", lambda: site.ledger.nodes(site.pool))
    run = site.submit("sleeper", parameters={"where": notes, "seconds": 90}, devices_per_node=4, grace="3s")
    gang = site.wait_gang(run, GangState.RUNNING)
    assert gang.placement is not None
    node = gang.placement.members[0].node
    began = time.time()
    # 10 s for a checkpoint that was never measured, and 3 s of grace: asked after about 7 s.
    assert f"node {node} is being emptied by" in ordered(site, "drain", node, "--by", "20s", "--why", "fan")
    site.wait("to be asked", lambda: site.ledger.evictions(site.pool, open_only=False), seconds=40)
    [eviction] = site.ledger.evictions(site.pool, open_only=False)
    assert eviction.why == f"Node {node} is being drained: fan"
    assert 4 < eviction.noticed_at - began < 20
    again = site.wait("another node", lambda: (g := site.gang(run)) and g.attempt > 1 and g.placement and g)
    assert again.placement.members[0].node != node
    ordered(site, "undrain", node)
    assert "drain" not in ordered(site, "orders")

    site.team("vip", nominal_devices=4)
    told = ordered(site, "reserve", "--team", "vip", "--node", node, "--to", "10min", "--why", "demo")
    assert "4 devices are kept for vip from" in told
    outsider = site.submit("hello", devices_per_node=4)
    assert "what is free is kept: reserved for team vip by" in site.wait_state(outsider, "AwaitingGPUs")[2]
    site.wait_state(site.submit("hello", queue="vip", devices_per_node=4), "COMPLETED", seconds=60)
    assert "AwaitingGPUs" in site.state(outsider)[1]
    [order] = json.loads(ordered(site, "orders", "--json"))
    ordered(site, "unreserve", str(order["number"]))
    site.wait_state(outsider, "COMPLETED", seconds=60)


def test_an_order_that_makes_no_sense_is_refused_in_one_line(site: Site) -> None:
    site.start_worker()
    site.wait("the nodes", lambda: site.ledger.nodes(site.pool))
    assert "unknown team nobody; teams are default" in refused(site, "freeze", "--team", "nobody", "--why", "x")
    assert "unknown node n99; the nodes of pool" in refused(site, "drain", "n99", "--why", "x")
    assert "is over before it begins" in refused(
        site, "reserve", "--team", "default", "--devices", "1", "--from", "2h", "--to", "1h", "--why", "x"
    )
    assert "8 are not in another reservation" in refused(
        site, "reserve", "--team", "default", "--devices", "9", "--to", "1h", "--why", "x"
    )
    assert "--admit, --hold or --lift: one of them" in refused(site, "override", "x", "--why", "x")
    assert "letters, digits" in refused(site, "team", "add", "Bad Name!")
    assert "is a circle" in refused(site, "team", "set", "default", "--parent", "default")
    assert "unreserve: refused: there is no such order" in refused(site, "unreserve", "77")
