"""Policies have versions with who and why; orders stand until they are taken back; what ended long ago is forgotten."""

import pytest

from dsec_blocks.ledger import SHADOW, Decision, Fence, Ledger
from dsec_blocks.model.devices import Device, Node
from dsec_blocks.model.errors import Fenced, InvalidRequest, LedgerError
from dsec_blocks.model.gangs import GangState
from dsec_blocks.model.teams import Team
from tests.blocks.ledger.gangs import LATER, POOL, known, on, running, waiting
from tests.fixtures.clock import ManualClock


def test_policies_are_numbered_and_the_newest_of_its_role_counts(ledger: Ledger, clock: ManualClock) -> None:
    assert ledger.policy(POOL) is None and ledger.policies(POOL) == []
    assert ledger.put_policy(POOL, {"w_age": 3.0}, by="ann", why="waits") == 2
    assert ledger.put_policy(POOL, {"w_age": 4.0}, role=SHADOW, by="bob", why="trial") == 3
    clock.seconds += 60
    assert ledger.put_policy(POOL, {}, by="ann", why="back") == 4
    found = ledger.policy(POOL)
    assert found is not None
    assert (found.version, found.body, found.by, found.why, found.at) == (4, {}, "ann", "back", clock.now())
    shadow = ledger.policy(POOL, role=SHADOW)
    assert shadow is not None and shadow.body == {"w_age": 4.0}
    assert ledger.put_policy(POOL, None, role=SHADOW, by="bob", why="seen enough") == 5
    assert ledger.policy(POOL, role=SHADOW) is None
    assert [policy.version for policy in ledger.policies(POOL)] == [5, 4, 3, 2]
    assert ledger.policy("other") is None and ledger.put_policy("other", {}, by="c", why="") == 2


def test_an_order_is_taken_up_and_logged_once(ledger: Ledger, fence: Fence, clock: ManualClock) -> None:
    number = ledger.wish(POOL, "freeze", None, {"scope": "all"}, by="ops", why="fire")
    assert not ledger.wish_taken_up(number)
    entry = Decision(at=clock.now(), pool=POOL, run_id=None, stage="order", outcome="freeze", why="ops: fire")
    assert ledger.take_up(fence, number, entry)
    assert not ledger.take_up(fence, number, entry)
    assert ledger.wish_taken_up(number)
    assert [d.why for d in ledger.decisions(POOL)] == ["ops: fire"]
    [wish] = ledger.wishes(POOL)
    assert wish.taken_up_at == clock.now()
    with pytest.raises(Fenced):
        ledger.take_up(Fence(POOL, "somebody", 99), number, entry)
    with pytest.raises(LedgerError, match=r"a wish is one of evict, cancel, .* freeze, thaw, reserve, unreserve"):
        ledger.wish(POOL, "explode", None, {}, by="ops", why="")


def ended(ledger: Ledger, fence: Fence, run_id: str, *devices: str) -> None:
    gang = running(ledger, fence, run_id, *devices)
    ledger.leave(fence, run_id, gang.attempt, {"kind": "exited"})
    ledger.end(fence, run_id, gang.attempt, final_state="COMPLETED")


def test_what_ended_long_ago_is_forgotten_in_batches_and_what_is_referred_to_stays(
    ledger: Ledger, fence: Fence, clock: ManualClock
) -> None:
    for number in range(5):
        ended(ledger, fence, f"old{number}", "n1/0")
    ended(ledger, fence, "parent", "n1/0")
    ledger.enqueue(fence, [waiting("child")])
    with ledger.transaction(at="test.plant") as connection:
        connection.exec_driver_sql("UPDATE gangs SET parent_run_id = 'parent' WHERE run_id = 'child'")
    preempted = running(ledger, fence, "preempted", "n1/1")
    ledger.evict(fence, ["preempted"], why="drain")
    ledger.leave(fence, "preempted", preempted.attempt, {"kind": "evicted"})
    ledger.end(fence, "preempted", preempted.attempt, final_state="CANCELLED")
    ledger.decide(fence, [Decision(at=clock.now(), pool=POOL, run_id="old0", stage="plan", outcome="admit", why="")])
    ledger.fulfil(fence, ledger.wish(POOL, "evict", "old0", {}, by="me", why=""), "evicting")
    drain = ledger.wish(POOL, "drain", None, {"node": "n9"}, by="me", why="")
    clock.seconds += 1000
    ended(ledger, fence, "young", "n1/0")

    def prune(batch: int = 200) -> tuple[int, int, int]:
        gone = ledger.prune(fence, ended_before=clock.now() - 10, decided_before=clock.now() - 10, batch=batch)
        return gone.gangs, gone.decisions, gone.wishes

    assert prune(batch=4) == (4, 1, 1)
    assert prune(batch=4) == (2, 0, 0)
    assert prune() == (0, 0, 0)
    assert {gang.run_id for gang in ledger.gangs(POOL)} == {"parent", "child", "young"}
    assert ledger.evictions(POOL, open_only=False) == [], "the evictions of a forgotten gang went with it"
    assert [wish.id for wish in ledger.wishes(POOL)] == [drain], "an order that stands is never forgotten"
    assert ledger.check() == []


def test_a_gang_that_is_retried_in_time_is_not_forgotten(ledger: Ledger, fence: Fence, clock: ManualClock) -> None:
    ended(ledger, fence, "a", "n1/0")
    clock.seconds += 1000
    ledger.enqueue(fence, [waiting("a")])
    assert not ledger.prune(fence, ended_before=clock.now(), decided_before=clock.now())
    assert known(ledger, "a").state is GangState.WAITING and known(ledger, "a").ended_at is None


def test_usage_is_kept_by_model_and_halves_with_time(ledger: Ledger, fence: Fence, clock: ManualClock) -> None:
    cards = {"h": "H100", "a": "A100"}
    ledger.put_nodes(
        fence,
        [
            Node(
                name=name,
                devices=tuple(
                    Device(uuid=f"{name}/{i}", node=name, index=i, model=model, memory_bytes=1) for i in range(2)
                ),
            )
            for name, model in cards.items()
        ],
    )
    ledger.enqueue(fence, [waiting("x", team="ml"), waiting("y", team="web")])
    ledger.admit(fence, "x", on("h/0", "h/1"), expires_at=LATER)
    ledger.admit(fence, "y", on("a/0"), expires_at=LATER)
    clock.seconds += 100

    def lately(**weights: float) -> dict[str, float]:
        return ledger.decayed_usage(POOL, clock.now(), half_life_seconds=100.0, model_weights=weights)

    assert lately() == {}, "nothing has been accrued yet"
    ledger.accrue(fence, clock.now(), half_life_seconds=100.0)
    assert ledger.usage(POOL) == {"ml": 200.0, "web": 100.0}
    assert lately() == {"ml": 200.0, "web": 100.0}
    assert lately(H100=3.0) == {"ml": 600.0, "web": 100.0}
    ledger.leave(fence, "y", 1, {})
    clock.seconds += 100
    assert lately() == {"ml": 100.0, "web": 50.0}
    ledger.accrue(fence, clock.now(), half_life_seconds=100.0)
    assert lately() == {"ml": 300.0, "web": 50.0}
    ledger.leave(fence, "x", 1, {})
    clock.seconds += 200
    assert lately() == {"ml": pytest.approx(75.0), "web": pytest.approx(12.5)}
    assert ledger.usage(POOL) == {"ml": 400.0, "web": 100.0}


def test_a_release_between_two_accruals_loses_no_second_of_decayed_usage(
    ledger: Ledger, fence: Fence, clock: ManualClock
) -> None:
    ledger.enqueue(fence, [waiting("x", team="ml")])
    ledger.admit(fence, "x", on("gone/0"), expires_at=LATER)
    clock.seconds += 10
    ledger.leave(fence, "x", 1, {})
    assert ledger.decayed_usage(POOL, clock.now(), half_life_seconds=100.0) == {"ml": 10.0}


def test_teams_form_a_tree_without_circles_and_strangers(ledger: Ledger) -> None:
    org = Team(name="org", nominal_devices=0, borrow_devices=2, lend_devices=1)
    ml = Team(name="ml", nominal_devices=4, parent="org", user_devices=2)
    ledger.put_team(POOL, org)
    ledger.put_team(POOL, ml)
    assert ledger.teams(POOL)["ml"] == ml and ledger.teams(POOL)["org"] == org
    with pytest.raises(InvalidRequest, match="team web: its parent 'nobody' is no team; teams are default, ml, org"):
        ledger.put_team(POOL, Team(name="web", nominal_devices=0, parent="nobody"))
    with pytest.raises(InvalidRequest, match="is a circle; give one of them another parent"):
        ledger.put_team(POOL, Team(name="org", nominal_devices=0, parent="ml"))
    with pytest.raises(InvalidRequest, match="team org is the parent of ml; move them first"):
        ledger.remove_team(POOL, "org")
    ledger.remove_team(POOL, "ml")
    ledger.remove_team(POOL, "org")


@pytest.mark.parametrize("name", ["Bad Name!", "a/b", "-x", "x" * 64, "ä"])
def test_a_name_that_no_work_queue_can_have_is_refused_with_the_rule(ledger: Ledger, name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"letters, digits, '.', '_' and '-', begins with a letter or a digit"):
        ledger.put_team(POOL, Team(name=name, nominal_devices=1))


@pytest.mark.parametrize("field", ["lend_devices", "user_devices"])
def test_a_negative_limit_is_refused(ledger: Ledger, field: str) -> None:
    with pytest.raises(LedgerError, match=f"{field} is -1; it is 0 or more, or none for no limit"):
        ledger.put_team(POOL, Team(name="t", nominal_devices=1, **{field: -1}))
