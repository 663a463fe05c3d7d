"""A node on which gangs lately failed is taken last; it is not closed."""

import pytest

from dsec_blocks.model.requests import Topology
from dsec_workers.scheduling import Policy
from tests.workers.scheduling.world import admitted, cluster, decide, node, running, waiting

FOUR = [node(f"n{i}", 2) for i in range(1, 5)]


def placed(*gangs, failures, nodes=FOUR, held=(), policy=Policy()):
    return admitted(decide(cluster(nodes, held, failures=failures), *gangs, policy=policy))


def test_a_gang_is_sent_back_to_the_node_on_which_the_last_one_failed():
    assert placed(waiting("a", "2"), failures={}) == {"a": ["n1"]}
    assert placed(waiting("a", "2"), failures={"n1": 1.0}) == {"a": ["n2"]}
    assert placed(waiting("a", "3x2"), failures={"n1": 0.1, "n3": 0.5}) == {"a": ["n1", "n2", "n4"]}


def test_the_failing_node_is_still_taken_when_there_is_no_other():
    held = [running(f"r{i}", f"n{i}/0-1", preemptible=False) for i in (1, 2, 4)]
    assert placed(waiting("a", "2"), failures={"n3": 9.0}, held=held) == {"a": ["n3"]}


def test_a_whole_node_is_broken_rather_than_one_used_that_fails():
    held = [running("r", "n1/0", preemptible=False)]
    assert placed(waiting("a", "1"), failures={}, held=held) == {"a": ["n1"]}
    assert placed(waiting("a", "1"), failures={"n1": 1.0}, held=held) == {"a": ["n2"]}


def test_what_has_faded_weighs_less_than_what_is_fresh():
    assert placed(waiting("a", "2"), failures={"n1": 1.0, "n2": 1.0, "n3": 0.25, "n4": 1.0}) == {"a": ["n3"]}


def test_a_policy_may_be_blind_to_failures():
    blind = Policy(failure_cards=0.0)
    assert placed(waiting("a", "2"), failures={"n1": 1.0}, policy=blind) == {"a": ["n1"]}


def test_data_on_a_failing_node_does_not_draw_a_gang_there():
    near = waiting("a", "2", seconds_saved=(("n1", 1200.0),))
    assert placed(near, failures={}) == {"a": ["n1"]}
    assert placed(near, failures={"n1": 1.0}) == {"a": ["n2"]}


def test_a_node_where_every_start_fails_draws_all_gangs_without_cards_because_it_is_empty():
    held = [running("r1", "n1/0"), running("r2", "n2/0")]
    two = FOUR[:2]
    assert placed(waiting("cpu", "1x0"), failures={}, nodes=two, held=held[:1]) == {"cpu": ["n2"]}
    assert placed(waiting("cpu", "1x0"), failures={"n2": 1.0}, nodes=two, held=held[:1]) == {"cpu": ["n1"]}


def test_nobody_is_moved_to_the_failing_node_while_there_is_another():
    held = [running("left", "n1/0", preemptible=False), running("right", "n2/0"), *(
        running(f"x{i}", f"n{i}/0", preemptible=False) for i in (3, 4))]  # fmt: skip
    result = decide(cluster(FOUR, held, failures={"n1": 1.0}), waiting("two", "2"), policy=Policy(consolidation=True))
    assert [move.placement.members[0].node for admit in result.admits for move in admit.moves] == ["n3"]


RACKS = [node(f"{rack}{i}", 2, rack=rack) for rack in "xy" for i in (1, 2, 3)]


def test_a_gang_goes_back_to_the_rack_where_it_failed_because_that_is_the_fuller_one():
    held = [running("r", "x3/0-1", preemptible=False)]
    assert placed(waiting("a", "2x2"), failures={}, nodes=RACKS, held=held) == {"a": ["x1", "x2"]}
    assert placed(waiting("a", "2x2"), failures={"x1": 1.0}, nodes=RACKS, held=held) == {"a": ["y1", "y2"]}
    failures = {"x1": 0.5, "y1": 1.0, "y2": 1.0}
    assert placed(waiting("a", "2x2"), failures=failures, nodes=RACKS, held=held) == {"a": ["x1", "x2"]}


def test_data_that_is_far_from_a_node_moved_a_gang_to_another_rack_as_if_gangs_had_failed_there():
    held = [running("r", "x3/0-1", preemptible=False)]
    far = waiting("a", "2x2", seconds_saved=(("x1", -5.0),))
    assert placed(far, failures={}, nodes=RACKS, held=held) == {"a": ["x1", "x2"]}


def test_a_rack_is_not_shunned_for_a_node_that_the_gang_does_not_need_there():
    held = [running("r", "y1/0-1", "y2/0-1", preemptible=False)]
    assert placed(waiting("a", "2x2"), failures={"x2": 1.0}, nodes=RACKS, held=held) == {"a": ["x1", "x3"]}
    assert placed(waiting("a", "3x2"), failures={"x2": 1.0}, nodes=RACKS, held=held) == {"a": ["x1", "x2", "x3"]}


def test_a_gang_is_sent_back_to_the_nvlink_domain_on_which_the_last_one_failed():
    linked = [node(f"{domain}{i}", 2, domain=domain) for domain in "xy" for i in (1, 2)]
    gang = waiting("a", "2x2", topology=Topology.DOMAIN)
    assert placed(gang, failures={}, nodes=linked) == {"a": ["x1", "x2"]}
    assert placed(gang, failures={"x2": 1.0}, nodes=linked) == {"a": ["y1", "y2"]}
    assert placed(gang, failures={"x2": 1.0, "y1": 2.0}, nodes=linked) == {"a": ["x1", "x2"]}


@pytest.mark.parametrize("failures", [{}, {"gone": 3.0}])
def test_a_node_that_is_gone_counts_for_nothing(failures):
    assert placed(waiting("a", "2"), failures=failures) == {"a": ["n1"]}


def test_the_snapshot_follows_when_failures_fade():
    before = cluster(FOUR, failures={"n1": 1.0})
    after = before.apply(failures={})
    assert admitted(decide(after, waiting("a", "2"))) == {"a": ["n1"]}
    assert admitted(decide(before.apply(), waiting("a", "2"))) == {"a": ["n2"]}
