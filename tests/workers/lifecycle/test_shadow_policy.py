"""What a shadow policy would have decided otherwise, and that each difference is told once."""

from types import SimpleNamespace
from typing import Any

from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.reasons import Reason, ReasonCode
from dsec_workers.lifecycle.shadow_policy import (
    ADMIT,
    HOLD,
    LET_STAY,
    OTHER_PLACE,
    OTHER_VICTIMS,
    RECALL,
    ShadowPolicy,
    differences,
)
from dsec_workers.scheduling.decisions import Admit, Hold, Plan, Recall, Victim


def admit(run_id: str, node: str = "n1", *victims: str) -> Admit:
    placement = Placement(members=(MemberPlacement(node=node, devices=(f"{node}/0",)),))
    return Admit(
        run_id=run_id, placement=placement, why="fits", victims=tuple(Victim(run_id=v, cost=1.0) for v in victims)
    )


def hold(run_id: str) -> Hold:
    return Hold(run_id=run_id, reason=Reason(code=ReasonCode.WAITS_FOR_CAPACITY, text="none free"))


def test_equal_plans_differ_in_nothing() -> None:
    assert differences(Plan(admits=(admit("a"),)), Plan(admits=(admit("a"),), policy_version="2")) == {}


def test_every_kind_of_difference_is_named_with_its_reason() -> None:
    real = Plan(admits=(admit("moved", "n1"), admit("held"), admit("kills", "n2", "v1")))
    shadow = Plan(
        admits=(admit("moved", "n2"), admit("new", "n1", "v2"), admit("kills", "n2", "v2")), holds=(hold("held"),)
    )
    assert differences(real, shadow) == {
        "moved": (OTHER_PLACE, "on n2"),
        "new": (ADMIT, "fits; evicts v2"),
        "kills": (OTHER_VICTIMS, "fits; evicts v2"),
        "held": (HOLD, "none free"),
    }


def test_a_passer_that_only_one_of_them_calls_back_is_a_difference() -> None:
    both, one, other = (Recall(run_id=name, for_run="head", start=1.0, cost=2.0) for name in ("both", "one", "other"))
    assert differences(Plan(recalls=(both, one)), Plan(recalls=(both, other))) == {
        "other": (RECALL, "for head, which it passed in line"),
        "one": (LET_STAY, "does not call it back for head, which it passed in line"),
    }


def test_a_difference_that_lasts_is_told_once_and_again_after_it_was_gone() -> None:
    told: list[tuple[str, str | None]] = []

    def decide(stage: str, outcome: str, **entry: Any) -> None:
        told.append((outcome, entry["run_id"]))

    term: Any = SimpleNamespace(decide=decide)
    shadow, gangs = ShadowPolicy(), {"a": object()}
    differs, agrees = Plan(admits=(admit("a"),)), Plan()
    for plan in (differs, differs, agrees, differs):
        shadow.log(term, Plan(), plan, gangs)  # type: ignore[arg-type]
    assert told == [(ADMIT, "a"), (ADMIT, "a")]
