"""Rounds follow each other at once out of a calm, and become fewer in a steady flow."""

import pytest

from dsec_workers.lifecycle.rests import LONGEST_REST_SECONDS, QUICK_ROUNDS, REST_SECONDS, least_rest, rest_after


def test_rounds_become_fewer_in_a_steady_flow_and_only_there() -> None:
    rests = [least_rest(busy_rounds) for busy_rounds in range(2000)]
    assert rests == sorted(rests) and rests[-1] == LONGEST_REST_SECONDS
    assert rests[: QUICK_ROUNDS + 1] == [REST_SECONDS] * (QUICK_ROUNDS + 1)


@pytest.mark.parametrize(
    ("took", "at_least", "rest"), [(0.0, 0.02, 0.02), (0.03, 0.02, 0.06), (0.03, 0.1, 0.1), (9.0, 0.1, 0.2)]
)
def test_a_round_is_not_all_that_is_done(took: float, at_least: float, rest: float) -> None:
    assert rest_after(took, at_least=at_least) == rest
