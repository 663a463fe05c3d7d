"""What cannot be is refused with one clear line, the same wherever it is asked for, and nothing is half-done."""

import pytest

from dsec_blocks.model.gangs import GangState
from tests.deployments.test_command import dsec, one_line
from tests.integration.site import FLOWS, Site

pytestmark = pytest.mark.slow
ABOVE = "is above 5, the highest that team low may ask for; lower it, or `dsec team set low --highest-priority 50`"


def test_a_gang_that_differs_from_what_was_admitted_fails_once_before_any_user_code_whatever_retries_it_has(
    site: Site,
) -> None:
    """`prefect deploy` reads only the YAML, so its job variables know nothing of `@gang`."""
    notes = site.home / "notes"
    site.start_worker()
    run = site.submit("mismatched.py:mismatched", parameters={"where": str(notes)}, devices_per_node=1)
    kind, name, message = site.wait_state(run, "FAILED", "COMPLETED", "CRASHED")
    assert (kind, name) == ("FAILED", "Failed")
    assert "nodes is 2 in @gang but 1 was admitted" in message
    assert "dsec deploy" in message
    gang = site.wait_gang(run, GangState.ENDED)
    assert (gang.attempt, gang.infrastructure_restarts) == (1, 0)
    assert not {"AwaitingRetry", "Retrying", "Running"} & set(site.history(run))
    assert not notes.exists()
    assert any("nodes is 2 in @gang" in line for line in site.logs(run))


def test_a_priority_above_the_teams_highest_is_refused_in_the_same_words_everywhere(site: Site) -> None:
    site.team("low", nominal_devices=8, highest_priority=5)
    site.start_worker()
    waits = site.submit("hello", queue="low", devices_per_node=1, priority=50)
    _, _, message = site.wait_state(waits, "AwaitingGPUs")
    assert ABOVE in message
    blocker = site.submit("sleeper", parameters={"where": str(site.home / "notes")}, nodes=2, devices_per_node=4)
    site.wait_gang(blocker, GangState.RUNNING)
    modest = site.submit("hello", queue="low", devices_per_node=1)
    site.wait_gang(modest, GangState.WAITING)

    at = {"DSEC_POOL": site.pool, "DSEC_LEDGER_URL": site.ledger_url, "PREFECT_API_URL": site.api_url}
    refused = dsec("prioritize", modest, "50", home=site.home, **at)
    assert refused.returncode == 2
    assert ABOVE in one_line(refused)
    target = f"{FLOWS / 'flows_under_test.py'}:hello"
    refused = dsec("deploy", target, "--team", "low", "-s", "priority=50", home=site.home, **at)
    assert refused.returncode == 2
    assert ABOVE in one_line(refused)


def test_a_run_whose_block_was_deleted_kept_every_other_run_of_the_pool_out_for_ever(site: Site) -> None:
    site.start_worker()
    name = f"token-{site.pool}"
    odd = site.submit("hello", devices_per_node=1, env={"TOKEN": f"{{{{ prefect.blocks.secret.{name} }}}}"})
    message = site.wait_state(odd, "AwaitingGPUs")[2]
    assert message.startswith(f"Block not found: '{name}' of type 'secret'"), message
    other = site.submit("hello", devices_per_node=1)
    site.wait_state(other, "COMPLETED")
