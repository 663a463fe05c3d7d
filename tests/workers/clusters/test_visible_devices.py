"""Which cards each rank sees, whoever made them."""

from collections.abc import Mapping

from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_workers.clusters.local.ranks import ranks_of

OTHERS = ("HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK", "ZE_FLAT_DEVICE_HIERARCHY")


def environments(*devices: str, per: str = "device") -> list[Mapping[str, str]]:
    placement = Placement(members=(MemberPlacement(node="n1", devices=devices),))
    return [rank.env for rank in ranks_of(placement, per=per, master_port=1, env={})]


def test_ranks_on_amds_or_intels_cards_see_one_each() -> None:
    found = environments("0", "1")
    assert [[env.get(name) for name in ("CUDA_VISIBLE_DEVICES", *OTHERS)] for env in found] == [
        ["0", "0", "0", "COMPOSITE"],
        ["1", "1", "1", "COMPOSITE"],
    ]


def test_who_has_all_cards_of_its_container_is_not_told_how_to_look_at_them() -> None:
    for env in (*environments("0", "1", per="member"), *environments("0")):
        assert not set(OTHERS) & set(env)


def test_nvidias_cards_have_names_that_the_others_do_not_know() -> None:
    for env in environments("GPU-a", "GPU-b"):
        assert env["CUDA_VISIBLE_DEVICES"].startswith("GPU-") and not set(OTHERS) & set(env)
