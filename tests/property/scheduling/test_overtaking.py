"""Who has been overtaken, against the definition counted out gang by gang."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dsec_workers.scheduling.overtaking import held_before

TIMES = st.integers(0, 20).map(float)


@given(held=st.lists(st.tuples(TIMES, st.integers(1, 16)), max_size=12), since=st.lists(TIMES, max_size=8))
def test_what_elders_hold_is_their_sum_and_never_more_for_who_came_earlier(held, since):
    times, devices = np.array([at for at, _ in held], float), np.array([count for _, count in held], np.int64)
    found = held_before(times, devices, np.array(since, float)).tolist()
    assert found == [sum(count for at, count in held if at <= mine) for mine in since]
    assert all(a <= b for s, a in zip(since, found, strict=True) for t, b in zip(since, found, strict=True) if s <= t)
