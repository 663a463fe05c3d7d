"""The torchrun launcher: the command line and environment of each agent. torch itself is not needed here."""

import sys

import pytest

from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_workers.clusters.local.ranks import launched_argv, ranks_of

PLACEMENT = Placement(
    members=(
        MemberPlacement(node="a", devices=("GPU-a0", "GPU-a1")),
        MemberPlacement(node="b", devices=("GPU-b0", "GPU-b1")),
    )
)


def _argv(*argv: str) -> list[list[str]]:
    ranks = ranks_of(PLACEMENT, per="member", master_port=29500, env={}, launcher="torchrun")
    return [launched_argv(argv, launcher="torchrun", env=rank.env, nodes=2) for rank in ranks]


def test_there_is_one_agent_a_member_and_all_meet_at_the_same_place() -> None:
    first, second = _argv("train.py", "--epochs", "3")
    assert first[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert first[3:8] == [
        "--nnodes=2", "--node-rank=0", "--nproc-per-node=2", "--master-addr=127.0.0.1", "--master-port=29500",
    ]  # fmt: skip
    assert [a for a, b in zip(first, second, strict=True) if a != b] == ["--node-rank=0"]
    assert "--node-rank=1" in second


@pytest.mark.parametrize(
    ("argv", "tail"),
    [
        (("train.py", "-x"), ["train.py", "-x"]),
        (("-m", "package.train"), ["-m", "package.train"]),
        (("python", "train.py"), ["--no-python", "python", "train.py"]),
        (("./train", "-x"), ["--no-python", "./train", "-x"]),
    ],
)
def test_only_scripts_and_modules_are_left_to_torchruns_own_python(argv: tuple[str, ...], tail: list[str]) -> None:
    assert _argv(*argv)[0][8:] == tail


def test_an_agent_sees_the_devices_of_its_member_only() -> None:
    ranks = ranks_of(PLACEMENT, per="member", master_port=29500, env={}, launcher="torchrun")
    assert [rank.env["CUDA_VISIBLE_DEVICES"] for rank in ranks] == ["GPU-a0,GPU-a1", "GPU-b0,GPU-b1"]
    assert [(rank.env["RANK"], rank.env["WORLD_SIZE"]) for rank in ranks] == [("0", "2"), ("1", "2")]
