"""What the ledger remembers, as the planner counts it."""

from dsec_workers.lifecycle.records import evicted_lately


def test_growing_is_no_eviction_and_uses_nothing_of_the_teams_limit() -> None:
    made_way = [("old", "a", 10.0, "x"), ("grew", "a", 30.0, "grew"), ("v", "a", 30.0, "x"), ("w", "b", 40.0, "x")]
    assert evicted_lately(made_way, since=20.0) == {"a": 1, "b": 1}
