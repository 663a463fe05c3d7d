"""Placements, teams and reasons mean what they say."""

import json

from dsec_blocks.model import errors
from dsec_blocks.model.gangs import HOLDING_STATES, GangState, MemberPlacement, Placement
from dsec_blocks.model.reasons import NEEDS_A_CHANGE, ReasonCode
from dsec_blocks.model.teams import Team


def test_a_placement_survives_json_and_lists_all_its_devices() -> None:
    placement = Placement(
        members=(MemberPlacement(node="n1", devices=("a", "b")), MemberPlacement(node="n2", devices=("c",)))
    )
    assert placement.devices == ("a", "b", "c")
    assert Placement.from_json(json.loads(json.dumps(placement.to_json()))) == placement
    assert Placement(members=(MemberPlacement(node="n1"),)).devices == ()


def test_a_team_with_a_borrowing_limit_has_a_limit() -> None:
    assert Team(name="t", nominal_devices=4, borrow_devices=2).limit_devices == 6
    assert Team(name="t", nominal_devices=4).limit_devices is None


def test_devices_are_held_from_the_reservation_until_the_gang_leaves() -> None:
    assert set(GangState) - HOLDING_STATES == {GangState.WAITING, GangState.LEAVING, GangState.ENDED}


def test_reasons_are_declared_most_actionable_first() -> None:
    assert set(list(ReasonCode)[: len(NEEDS_A_CHANGE)]) == NEEDS_A_CHANGE


def test_every_error_is_a_dsec_error_with_an_exit_code_except_the_eviction_that_user_code_must_not_swallow() -> None:
    raised = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, BaseException)]
    assert {kind for kind in raised if not issubclass(kind, errors.DsecError)} == {errors.Evicted}
    assert all(kind.exit_code in (1, 2, 3) for kind in raised if issubclass(kind, errors.DsecError))
    assert not issubclass(errors.Evicted, Exception)
