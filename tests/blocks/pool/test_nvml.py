"""Finding the machine's cards: none, four, one lost, a driver that hangs."""

import time
from pathlib import Path

import pytest

from dsec_blocks.model.errors import ClusterError
from dsec_blocks.pool.nvml import nvlink_domains, probe_node, short_model

FAKE = Path(__file__).parents[2] / "fakes" / "nvml"


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("PYTHONPATH", str(FAKE))
    monkeypatch.setenv("FAKE_NVML", "well")
    return monkeypatch


def test_a_machine_without_a_driver_has_no_cards_and_no_error(cards: pytest.MonkeyPatch) -> None:
    cards.setenv("FAKE_NVML", "absent")
    assert probe_node(name="here").devices == ()


def test_cards_have_the_model_people_ask_for_and_the_domain_their_links_make(cards: pytest.MonkeyPatch) -> None:
    node = probe_node(name="here")
    assert [device.uuid for device in node.devices] == [f"GPU-fake-{index}" for index in range(4)]
    assert [device.model for device in node.devices] == ["H100", "H100", "A100", "RTX 4090"]
    assert [device.nvlink_domain for device in node.devices] == ["here/nvlink-0", "here/nvlink-0", "", ""]
    assert [device.memory_bytes // 2**30 for device in node.devices] == [80, 80, 80, 24]
    assert {device.node for device in node.devices} == {"here"}


def test_a_lost_card_does_not_hide_the_others(cards: pytest.MonkeyPatch) -> None:
    cards.setenv("FAKE_NVML", "lost")
    assert [device.uuid for device in probe_node().devices] == ["GPU-fake-0", "GPU-fake-1", "GPU-fake-3"]


def test_a_driver_that_hangs_is_given_up_at_the_deadline(cards: pytest.MonkeyPatch) -> None:
    cards.setenv("FAKE_NVML", "hangs")
    before = time.monotonic()
    with pytest.raises(ClusterError, match=r"of here did not answer within 0\.5 s; a card may be hanging"):
        probe_node(name="here", deadline_seconds=0.5)
    assert time.monotonic() - before < 30


def test_a_driver_that_refuses_is_an_error_with_its_words(cards: pytest.MonkeyPatch) -> None:
    cards.setenv("FAKE_NVML", "denied")
    with pytest.raises(ClusterError, match=r"cannot be asked: .*version mismatch"):
        probe_node()


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla T4", "T4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("Quadro RTX 8000", "RTX 8000"),
    ],
)
def test_models_are_named_shortly(name: str, short: str) -> None:
    assert short_model(name) == short


@pytest.mark.parametrize(
    ("cards_and_links", "domains"),
    [
        ([("a", []), ("b", [])], [None, None]),
        ([("a", ["b"]), ("b", ["a"]), ("c", ["d"]), ("d", ["c"])], [0, 0, 1, 1]),
        ([("a", ["switch"]), ("b", []), ("c", ["switch"])], [0, None, 0]),
        ([("a", ["x"]), ("b", ["y"]), ("c", ["x", "y"])], [0, 0, 0]),
    ],
)
def test_cards_are_in_one_domain_when_a_link_or_a_switch_joins_them(
    cards_and_links: list[tuple[str, list[str]]], domains: list[int | None]
) -> None:
    assert nvlink_domains(cards_and_links) == domains
