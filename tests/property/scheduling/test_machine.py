"""Whatever happens to a pool, in whatever order: nothing is held twice, no gang is torn, nobody evicts in turn."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dsec_blocks.model.devices import Health
from dsec_blocks.model.requests import Topology
from dsec_workers.scheduling import Policy, plan
from tests.property.scheduling import worlds
from tests.property.scheduling.pool import Pool

POLICIES = [
    Policy(),
    Policy(consolidation=True, resizing=True),
    Policy(time_sharing=True, level_device_seconds=(500.0, 4000.0), consolidation=True),
    Policy(evictions_per_team=2, resizing=True, exact_candidates=4, search_budget=30),
]


class Scheduling(RuleBasedStateMachine):
    """Submissions, ends, failures and time, in any order, with a plan whenever the worker wakes."""

    @initialize(cluster=worlds.nodes(least=2, most=4), teams=worlds.teams(), policy=st.sampled_from(POLICIES))
    def begin(self, cluster, teams, policy):
        self.pool = Pool(cluster, teams, policy, worlds.NOW)
        self.count = 0

    @rule(queue=worlds.queues(most=4), elastic=st.booleans())
    def submit(self, queue, elastic):
        for gang in queue:
            request = gang.request
            if elastic and request.nodes > 1:
                request = replace(request, min_nodes=1)
            name, now = f"g{self.count}", self.pool.now
            self.count += 1
            self.pool.submit(replace(gang, run_id=name, request=request, submitted_at=now, eligible_at=now))

    @rule()
    def wake(self):
        pool = self.pool
        before = pool.current()
        queue = list(pool.waiting.values())
        expected = plan(before, queue, pool.policy, pool.now)
        assert plan(pool.rebuilt(), queue[::-1], pool.policy, pool.now) == expected, "records in another order"
        result = pool.cycle()
        assert result == expected, "planning twice"
        answered = [admit.run_id for admit in result.admits] + [hold.run_id for hold in result.holds]
        assert sorted(answered) == sorted(gang.run_id for gang in queue)
        for admit in result.admits:
            asked = {v.run_id for v in admit.victims} | {c.run_id for c in (*admit.moves, *admit.resizes)}
            assert admit.run_id not in asked
            assert len(asked) == len(admit.victims) + len(admit.moves) + len(admit.resizes), "one choice per gang"

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

    @rule(data=st.data(), healthy=st.booleans())
    def a_device_fails_or_comes_back(self, data, healthy):
        pool = self.pool
        index = data.draw(st.integers(0, len(pool.nodes) - 1))
        node = pool.nodes[index]
        broken = replace(node.devices[0], health=Health.HEALTHY if healthy else Health.FROZEN)
        pool.nodes[index] = replace(node, devices=(broken, *node.devices[1:]))
        pool.current()
        pool.snapshot = pool.snapshot.apply(nodes=pool.nodes)

    @invariant()
    def no_device_is_held_twice_and_every_gang_is_whole(self):
        if not hasattr(self, "pool"):
            return
        holders = [gang for gang in self.pool.running.values() if not gang.promised]
        held = [uuid for gang in holders for uuid in gang.placement.devices]
        assert len(held) == len(set(held))
        promised = [uuid for g in self.pool.running.values() if g.promised for uuid in g.placement.devices]
        assert len(promised) == len(set(promised))
        leaving = {uuid for gang in holders if gang.evicting for uuid in gang.placement.devices}
        assert set(promised) & set(held) <= leaving
        for gang in self.pool.running.values():
            request, members = gang.request, gang.placement.members
            assert (request.min_nodes or request.nodes) <= len(members) <= request.nodes
            assert len({member.node for member in members}) == len(members)
            assert all(len(member.devices) == request.devices_per_node for member in members)
            if request.topology is Topology.DOMAIN and len(gang.placement.devices) > 1:
                domains = {
                    d.nvlink_domain for n in self.pool.nodes for d in n.devices if d.uuid in gang.placement.devices
                }
                assert len(domains) == 1 and "" not in domains

    @invariant()
    def no_node_gives_more_processors_or_memory_than_it_has(self):
        if hasattr(self, "pool"):
            there = [gang for gang in self.pool.running.values() if not gang.promised]
            assert not [node.name for node in self.pool.nodes if Pool.overdrawn(node, there)]

    @invariant()
    def no_two_gangs_evict_each_other_but_by_level(self):
        if hasattr(self, "pool") and not self.pool.policy.time_sharing:
            assert not {(b, a) for a, b in self.pool.pairs} & self.pool.pairs

    @invariant()
    def nobody_is_moved_or_resized_twice_within_six_hours(self):
        if hasattr(self, "pool"):
            times: dict[str, float] = {}
            for at, run_id in self.pool.changes:
                assert at - times.get(run_id, -1e18) >= self.pool.policy.move_interval_seconds or run_id not in times
                times[run_id] = at


TestScheduling = Scheduling.TestCase
TestScheduling.settings = settings(max_examples=250, stateful_step_count=20, deadline=None)
