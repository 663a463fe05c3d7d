"""Every waiting gang is told one thing, the one it can act on first."""

import pytest

from dsec_blocks.model.reasons import ReasonCode
from dsec_blocks.model.requests import Kind
from dsec_workers.scheduling import Frozen, sentence
from dsec_workers.scheduling.reasons import ordinal
from tests.workers.scheduling.world import NOW, admitted, cluster, decide, node, running, team, texts, waiting, why


def test_t57_each_kind_of_waiting_has_its_own_reason():
    snapshot = cluster(
        [node("n1", 8), node("n2", 8)],
        [running("r1", "n1/0-5"), running("r2", "n2/0-5", evicting=True, evicting_for="victims")],
        [
            team("a", 100),
            team("full", 0, borrow=4),
            team("shut", 4),
            team("own", 2, borrow=2),
            team("low", 2, highest=5),
        ],
        frozen=Frozen(teams={"shut": "audit until noon"}),
    )
    result = decide(
        snapshot,
        waiting("invalid", team="low", priority=6),
        waiting("unknown", team="nobody"),
        waiting("never", "3x8"),
        waiting("over", "5", team="full"),
        waiting("frozen", team="shut"),
        waiting("capacity", "2x5"),
        waiting("victims", "2x8"),
        waiting("backing", "1", not_before=NOW + 30),
    )
    assert why(result) == {
        "invalid": "invalid-request",
        "unknown": "unknown-team",
        "never": "never-fits",
        "over": "over-team-limit",
        "frozen": "admission-frozen",
        "capacity": "waits-for-capacity",
        "victims": "waits-for-victims",
        "backing": "backing-off",
    }
    told = texts(result)
    assert told["invalid"] == (
        "priority: 6 is above 5, the highest that team low may ask for; lower it, or "
        "`dsec team set low --highest-priority 6`"
    )
    assert told["unknown"] == "unknown team nobody; teams are a, full, low, own, shut; `dsec team add nobody`"
    assert told["never"] == "needs 3×8 GPUs, which this cluster can never hold; the largest that fits is 2×8 GPUs"
    assert told["over"] == (
        "needs 5 GPUs, but team full may hold at most 4 (0 of its own + 4 borrowed); ask for less or "
        "`dsec team set full`"
    )
    assert told["frozen"] == "admission to team shut is frozen: audit until noon"
    assert told["victims"] == "needs 2×8 GPUs; 1 gang leaving to make room"
    assert told["backing"] == "the last start failed; tried again in 30 s"


def test_reasons_that_need_a_change_have_no_place_in_line():
    result = decide(cluster([node("n1", 1)]), waiting("never", "2"), waiting("no", team="x"))
    assert all(hold.position is None and hold.eta is None for hold in result.holds)


def test_an_unknown_model_is_answered_with_the_models_there_are():
    snapshot = cluster([node("n1", 2), node("n2", 2, model="A100")])
    assert texts(decide(snapshot, waiting("g", gpu_model="H200")))["g"] == (
        "unknown GPU model H200; models here are A100, H100"
    )


def test_more_memory_than_any_card_has_is_answered_with_the_largest_card():
    result = decide(cluster([node("n1", 2)]), waiting("g", gpu_memory_bytes=90 * 2**30))
    assert texts(result)["g"] == "needs 1 GPU with at least 90 GiB; the largest GPU here has 80 GiB (H100)"


def test_t31_a_gang_larger_than_its_team_limit_is_rejected_with_the_limit_and_holds_nothing():
    snapshot = cluster([node("n1", 8)], teams=[team("a", 4, borrow=2)])
    result = decide(snapshot, waiting("big", "8"))
    assert result.admits == () and result.shadows == ()
    assert "at most 6 (4 of its own + 2 borrowed)" in texts(result)["big"]


def test_a_gang_that_cannot_be_evicted_and_exceeds_what_its_team_owns_is_told_so():
    snapshot = cluster([node("n1", 8)], teams=[team("a", 4)])
    result = decide(snapshot, waiting("svc", "8", kind=Kind.INFERENCE))
    assert why(result) == {"svc": "over-team-limit"}
    assert "cannot be evicted" in texts(result)["svc"]


def test_a_gang_whose_own_parent_holds_what_it_needs_says_so():
    snapshot = cluster([node("n1", 4)], [running("parent", "n1/0-3")])
    result = decide(snapshot, waiting("child", "2", parent_run_id="parent"))
    assert why(result) == {"child": "waits-for-parent"}
    snapshot = cluster([node("n1", 4)], [running("parent", "n1/0"), running("other", "n1/1-3")])
    assert why(decide(snapshot, waiting("child", "2", parent_run_id="parent"))) == {"child": "waits-for-capacity"}


def test_waiting_for_quota_names_what_the_team_uses():
    snapshot = cluster([node("n1", 8)], [running("r", "n1/0-2")], [team("a", 2, borrow=2)])
    result = decide(snapshot, waiting("g", "2"))
    assert texts(result)["g"] == "needs 2 GPUs on one node; team a uses 3 of the 4 GPUs it may hold"


def test_a_frozen_pool_admits_nothing_and_a_frozen_node_only_closes_itself():
    nodes = [node("n1", 4), node("n2", 4)]
    result = decide(cluster(nodes, frozen=Frozen(everything="maintenance")), waiting("g"))
    assert texts(result) == {"g": "admission to the pool is frozen: maintenance"}
    half = cluster(nodes, frozen=Frozen(nodes={"n1": "new driver"}))
    result = decide(half, waiting("g", "4"), waiting("h", "4", waited=1))
    assert admitted(result) == {"g": ["n2"]}
    assert texts(result)["h"] == "admission to node n1 is frozen: new driver"


def test_the_whole_sentence_reads_as_one_line():
    nodes = [node("n1", 8), node("n2", 8)]
    held = [running("r1", "n1/0-7", max_runtime_seconds=3600 + 720), running("r2", "n2/0-4", max_runtime_seconds=9000)]
    result = decide(
        cluster(nodes, held),
        waiting("first", "8", gpu_model="H100", waited=99),
        waiting("second", "8", gpu_model="H100"),
    )
    lines = {hold.run_id: sentence(hold, NOW) for hold in result.holds}
    assert lines == {
        "first": "needs 8 H100 on one node; 3 free on the best node; 1st in line; starts in about 12 min",
        "second": "needs 8 H100 on one node; 3 free on the best node; 2nd in line; starts in about 72 min",
    }


@pytest.mark.parametrize(
    ("number", "text"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (13, "13th"), (22, "22nd")]
)
def test_places_in_line_are_spelled_as_people_say_them(number, text):
    assert ordinal(number) == text


def test_every_code_is_one_the_model_knows():
    assert len(ReasonCode) == 11
