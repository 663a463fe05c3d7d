"""HEAD as a value: who may commit, what is kept, what is newest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec_blocks.checkpoints.heads import Commit, Head, committed, raised, resumed
from dsec_blocks.model.errors import CheckpointFenced


def commit(step: int, attempt: int) -> Commit:
    return Commit(step=step, attempt=attempt, manifest=f"m{attempt}.{step}", digest=f"d{attempt}.{step}")


def steps(head: Head) -> list[tuple[int, int]]:
    return [c.order for c in head.newest_first]


def test_a_new_attempt_raises_the_generation_and_an_older_one_is_fenced() -> None:
    head = raised(None, run="r", attempt=2)
    assert head.generation == 2
    with pytest.raises(
        CheckpointFenced, match="run r: attempt 1 may no longer commit checkpoints; attempt 2 owns them"
    ):
        raised(head, run="r", attempt=1)
    with pytest.raises(CheckpointFenced):
        committed(head, commit(5, 1), run="r", keep=3)


def test_beginning_again_within_an_attempt_changes_nothing() -> None:
    head = committed(raised(None, run="r", attempt=1), commit(5, 1), run="r", keep=3)
    assert raised(head, run="r", attempt=1) == head


def test_a_local_call_takes_the_next_generation() -> None:
    head = raised(None, run="r", attempt=None)
    assert (head.generation, raised(head, run="r", attempt=None).generation) == (1, 2)


def test_newest_is_the_later_generation_even_with_a_smaller_step() -> None:
    head = committed(raised(None, run="r", attempt=1), commit(60, 1), run="r", keep=3)
    head = committed(raised(head, run="r", attempt=2), commit(55, 2), run="r", keep=3)
    assert steps(head) == [(2, 55), (1, 60)]


def test_a_commit_that_is_there_or_superseded_changes_nothing() -> None:
    head = committed(raised(None, run="r", attempt=1), commit(20, 1), run="r", keep=3)
    assert committed(head, commit(20, 1), run="r", keep=3) is head
    assert committed(head, commit(10, 1), run="r", keep=3) is head


def test_the_commit_that_the_running_gang_resumed_from_is_kept_beside_the_newest() -> None:
    head = committed(raised(None, run="r", attempt=1), commit(10, 1), run="r", keep=2)
    head = resumed(raised(head, run="r", attempt=2), base=head.commits[0], torn=())
    for step in (20, 30, 40):
        head = committed(head, commit(step, 2), run="r", keep=2)
    assert steps(head) == [(2, 40), (2, 30), (1, 10)]
    head = committed(raised(head, run="r", attempt=3), commit(50, 3), run="r", keep=2)
    assert steps(head) == [(3, 50), (2, 40)]


def test_each_commit_names_the_one_before_it() -> None:
    head = committed(raised(None, run="r", attempt=1), commit(10, 1), run="r", keep=9)
    head = resumed(raised(head, run="r", attempt=2), base=head.commits[0], torn=())
    head = committed(head, commit(20, 2), run="r", keep=9)
    head = committed(head, commit(30, 2), run="r", keep=9)
    assert [c.parent for c in head.newest_first] == ["d2.20", "d1.10", None]


def test_starting_over_happens_once_for_each_value() -> None:
    head = committed(raised(None, run="r", attempt=1), commit(10, 1), run="r", keep=3)
    fresh = raised(head, run="r", attempt=2, fresh="1")
    assert (fresh.commits, fresh.committed_ever) == ((), False)
    fresh = committed(fresh, commit(5, 2), run="r", keep=3)
    assert steps(raised(fresh, run="r", attempt=3, fresh="1")) == [(2, 5)]
    assert steps(raised(fresh, run="r", attempt=3, fresh="2")) == []


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("begin"), st.integers(0, 2)),
            st.tuples(st.just("commit"), st.integers(1, 50)),
            st.tuples(st.just("zombie"), st.integers(1, 50)),
        ),
        max_size=40,
    ),
    st.integers(1, 4),
)
def test_whatever_happens_the_newest_commit_is_never_lost_and_never_an_old_attempts(
    happenings: list[tuple[str, int]], keep: int
) -> None:
    head = raised(None, run="r", attempt=1)
    newest: tuple[int, int] | None = None
    for what, number in happenings:
        if what == "begin":
            head = raised(head, run="r", attempt=head.generation + number)
            head = resumed(head, base=head.newest_first[0] if head.commits else None, torn=())
        elif what == "commit":
            own = max((c.step for c in head.commits if c.attempt == head.generation), default=0)
            head = committed(head, commit(number, head.generation), run="r", keep=keep)
            newest = max(newest or (0, 0), (head.generation, max(own, number)))
        elif head.generation > 1:
            with pytest.raises(CheckpointFenced):
                committed(head, commit(number, head.generation - 1), run="r", keep=keep)
        assert (steps(head)[0] if head.commits else None) == newest
        assert len(head.commits) <= keep + 1
        assert Head.from_json(head.to_json()) == head
