"""Fair shares: quota first, then the surplus by weight, and what the modest leave goes to the others."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec_workers.scheduling.shares import fill

ROWS = [
    # capacity, [(quota, demand, weight)], capped shares, uncapped shares
    ("nobody wants anything", 8, [(4, 0, 1), (0, 0, 1)], [0, 0], [8, 8]),
    ("one wants it all", 8, [(4, 99, 1), (0, 0, 1)], [8, 0], [8, 2]),
    ("quota goes before weight", 10, [(6, 99, 1), (0, 99, 3)], [7, 3], [7, 3]),
    ("the surplus follows weight", 8, [(0, 99, 1), (0, 99, 3)], [2, 6], [2, 6]),
    ("what the modest leave goes to the others", 12, [(0, 2, 1), (0, 99, 1), (0, 99, 1)], [2, 5, 5], [4, 5, 5]),
    ("idle quota is lent", 10, [(8, 1, 1), (0, 99, 1)], [1, 9], [9, 9]),
    ("a quota is a promise, even where all of them are too much", 4, [(4, 99, 1), (4, 99, 1)], [4, 4], [4, 4]),
]


@pytest.mark.parametrize(("name", "capacity", "siblings", "capped", "uncapped"), ROWS, ids=[row[0] for row in ROWS])
def test_shares(name: str, capacity: float, siblings: list, capped: list, uncapped: list) -> None:
    quota, demand, weight = (np.array(column, float) for column in zip(*siblings, strict=True))
    found, without_cap = fill(capacity, quota, demand, weight)
    assert found.tolist() == pytest.approx(capped)
    assert without_cap.tolist() == pytest.approx(uncapped)


amounts = st.integers(0, 50).map(float)
siblings = st.lists(st.tuples(amounts, amounts, st.sampled_from([0.5, 1.0, 2.0, 7.0])), min_size=1, max_size=7)


@settings(deadline=None)
@given(capacity=amounts, siblings=siblings)
def test_nothing_is_wasted_while_somebody_wants_it_and_nobody_gets_more_than_he_wants(capacity, siblings) -> None:
    quota, demand, weight = (np.array(column, float) for column in zip(*siblings, strict=True))
    capped, uncapped = fill(capacity, quota, demand, weight)
    assert (capped <= demand + 1e-6).all()
    assert (capped >= np.minimum(quota, demand) - 1e-6).all(), "a team may always use its quota"
    assert (uncapped >= quota - 1e-6).all()
    assert (uncapped >= capped - 1e-6).all()
    promised = np.minimum(quota, demand).sum()
    assert capped.sum() == pytest.approx(max(promised, min(capacity, demand.sum())), abs=1e-6)


@settings(deadline=None)
@given(capacity=amounts, siblings=siblings, which=st.integers(0, 6))
def test_the_uncapped_share_is_what_that_one_would_get_if_it_wanted_everything(capacity, siblings, which) -> None:
    quota, demand, weight = (np.array(column, float) for column in zip(*siblings, strict=True))
    number = which % len(siblings)
    _, uncapped = fill(capacity, quota, demand, weight)
    wanting = demand.copy()
    wanting[number] = 1e9
    assert uncapped[number] == pytest.approx(fill(capacity, quota, wanting, weight)[0][number], abs=1e-4)
