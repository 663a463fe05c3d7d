"""Planning with a memory is planning from scratch, whatever happens between two cycles; so is asking all at once."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from dsec_blocks.model.devices import Health
from dsec_blocks.model.teams import Team
from dsec_workers.scheduling import Frozen, Memory, Plan, Policy, QueuedGang, Snapshot, cycle, plan
from dsec_workers.scheduling.screening import Screening
from tests.property.scheduling import worlds
from tests.property.scheduling.pool import Pool
from tests.property.scheduling.test_machine import POLICIES
from tests.property.scheduling.test_plan_invariants import seen, situations
from tests.property.scheduling.test_tree_of_teams import seen as seen_in_tree
from tests.property.scheduling.test_tree_of_teams import situations as situations_in_trees

NOW = worlds.NOW


@contextmanager
def patience(refusals: int) -> Iterator[None]:
    """So many are refused one by one before all are looked at together, however few there are."""
    before = cycle.PATIENCE, cycle.FEW
    cycle.PATIENCE, cycle.FEW = refusals, 0
    try:
        yield
    finally:
        cycle.PATIENCE, cycle.FEW = before


@contextmanager
def nobody_hopeless() -> Iterator[None]:
    """All are tried one by one."""
    before = Screening.hopeless
    Screening.hopeless = lambda self, *, may_evict: np.zeros(len(self.team), bool)
    try:
        yield
    finally:
        Screening.hopeless = before


class Remembering(RuleBasedStateMachine):
    """A pool whose every plan is made twice: with the memory of all plans before, and from nothing."""

    @initialize(cluster=worlds.nodes(least=2, most=4), teams=worlds.teams(), policy=st.sampled_from(POLICIES))
    def begin(self, cluster, teams, policy):
        self.pool, self.memory, self.count = Pool(cluster, teams, policy, NOW), Memory(), 0
        self.frozen = Frozen()

    @rule(queue=worlds.queues(most=5), elastic=st.booleans(), parent=st.booleans(), person=st.sampled_from(["", "ada"]))
    def submit(self, queue, elastic, parent, person):
        for gang in queue:
            request, now = gang.request, self.pool.now
            if elastic and request.nodes > 1:
                request = replace(request, min_nodes=1)
            parents = sorted(self.pool.running) if parent else []
            later = {"parent_run_id": parents[0] if parents else None, "created_by": person}
            name = f"g{self.count}"
            self.count += 1
            self.pool.submit(
                replace(
                    gang, run_id=name, request=request, submitted_at=now, eligible_at=now + (name[-1] == "7"), **later
                )
            )

    @rule(again=st.booleans(), reverse=st.booleans())
    def wake(self, again, reverse):
        """Plan; the records are the same objects, or (as from a ledger) equal ones in any order."""
        pool = self.pool
        snapshot = replace(pool.rebuilt() if again else pool.current(), frozen=self.frozen)
        queue = [replace(gang) if again else gang for gang in pool.waiting.values()]
        queue = queue[::-1] if reverse else queue
        scratch = plan(snapshot, queue, pool.policy, pool.now)
        assert plan(snapshot, queue, pool.policy, pool.now, memory=self.memory) == scratch
        assert plan(snapshot, queue, pool.policy, pool.now, memory=self.memory) == scratch, "planning twice"
        if not self.frozen.everything and not self.frozen.nodes:
            pool.cycle()

    @rule()
    def victims_leave(self):
        self.pool.victims_leave()

    @rule(seconds=st.sampled_from([1.0, 60.0, 400.0, 4000.0, 30_000.0]))
    def time_passes(self, seconds):
        self.pool.advance(seconds)

    @precondition(lambda self: any(not g.evicting for g in self.pool.running.values()))
    @rule(data=st.data())
    def one_ends(self, data):
        names = sorted(name for name, gang in self.pool.running.items() if not gang.evicting)
        self.pool.finish(data.draw(st.sampled_from(names)))

    @precondition(lambda self: self.pool.waiting)
    @rule(data=st.data())
    def one_is_cancelled(self, data):
        del self.pool.waiting[data.draw(st.sampled_from(sorted(self.pool.waiting)))]

    @precondition(lambda self: self.pool.waiting)
    @rule(data=st.data())
    def one_failed_to_start(self, data):
        name = data.draw(st.sampled_from(sorted(self.pool.waiting)))
        self.pool.waiting[name] = replace(self.pool.waiting[name], not_before=self.pool.now + 30)

    @rule(data=st.data(), healthy=st.booleans())
    def a_device_fails_or_comes_back(self, data, healthy):
        pool = self.pool
        index = data.draw(st.integers(0, len(pool.nodes) - 1))
        node = pool.nodes[index]
        broken = replace(node.devices[0], health=Health.HEALTHY if healthy else Health.FROZEN)
        pool.nodes[index] = replace(node, devices=(broken, *node.devices[1:]))
        pool.current()
        pool.snapshot = pool.snapshot.apply(nodes=pool.nodes)

    @rule(name=st.sampled_from(worlds.TEAMS), owned=st.integers(0, 8), persons=st.sampled_from([None, None, 2]))
    def a_team_is_set(self, name, owned, persons):
        pool = self.pool
        team = Team(name=name, nominal_devices=owned, user_devices=persons, lend_devices=owned // 2)
        pool.teams = {**pool.teams, name: team}
        pool.snapshot = pool.current().apply(teams=pool.teams)

    @rule(
        frozen=st.sampled_from([Frozen(), Frozen(everything="f"), Frozen(teams={"a": "f"}), Frozen(nodes={"n0": "f"})])
    )
    def an_operator_freezes(self, frozen):
        self.frozen = frozen


TestRemembering = Remembering.TestCase
TestRemembering.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


def three_ways(snapshot: Snapshot, queue: list[QueuedGang], policy: Policy) -> list[Plan]:
    """Looking at all classes after one refusal, after a few, and never."""
    found = []
    for refusals in (1, 4):
        with patience(refusals):
            found.append(plan(snapshot, queue, policy, NOW))
    with nobody_hopeless():
        return [*found, plan(snapshot, queue, policy, NOW)]


@settings(max_examples=300, deadline=None)
@given(situations(), st.sampled_from(POLICIES))
def test_nobody_whom_an_attempt_would_admit_is_called_hopeless(situation, policy):
    at_once, sooner, never = three_ways(seen(situation), situation[3], policy)
    assert at_once == never and sooner == never


@settings(max_examples=300, deadline=None)
@given(situations_in_trees(), st.sampled_from(POLICIES))
def test_nobody_in_a_tree_of_teams_is_called_hopeless_in_vain(situation, policy):
    at_once, sooner, never = three_ways(seen_in_tree(situation), situation[3], policy)
    assert at_once == never and sooner == never


@settings(max_examples=100, deadline=None)
@given(situations(), situations(), st.sampled_from(POLICIES))
def test_a_memory_of_another_pool_does_no_harm(one, other, policy):
    memory = Memory()
    for situation in (one, other, one):
        expected = plan(seen(situation), situation[3], policy, NOW)
        assert plan(seen(situation), situation[3], policy, NOW, memory=memory) == expected
