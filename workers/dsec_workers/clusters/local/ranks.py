"""Which ranks a `gang.run` has, and the environment that tells each of them who it is.

The variables are those that torch, JAX and their like already read, so that user code needs no DSec import.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsec_blocks.model import names
from dsec_blocks.model.errors import ClusterError
from dsec_blocks.model.gangs import Placement

MASTER_ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One process of a `gang.run`."""

    rank: int
    member: int
    devices: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def ranks_of(
    placement: Placement,
    *,
    per: str,
    master_port: int,
    env: Mapping[str, str],
    launcher: str = "plain",
    master_address: str = MASTER_ADDRESS,
) -> tuple[Rank, ...]:
    """The ranks of a run `per` "device" or "member", in order. A member without devices has one rank in both modes.

    `master_address` is where the other members reach rank 0.

    Raises `ClusterError` for an unknown `per` or launcher.
    """
    if per not in ("device", "member"):
        raise ClusterError(f"gang.run: per={per!r} is neither 'device' nor 'member'")
    if launcher not in ("plain", "torchrun", "jax"):
        raise ClusterError(f"gang.run: launcher {launcher!r} is not available here; use 'plain', 'torchrun' or 'jax'")
    shares = [
        (index, local, len(parts), tuple(part))
        for index, member in enumerate(placement.members)
        for parts in [[(uuid,) for uuid in member.devices] if per == "device" and member.devices else [member.devices]]
        for local, part in enumerate(parts)
    ]
    return tuple(
        Rank(
            rank=number,
            member=member,
            devices=devices,
            env={
                **env,
                "RANK": str(number),
                "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": str(local_size),
                "WORLD_SIZE": str(len(shares)),
                "GROUP_RANK": str(member),
                "MASTER_ADDR": master_address,
                "MASTER_PORT": str(master_port),
                names.ENV_MEMBER: str(member),
                **device_env(devices),
                **(_part_env(devices) if local_size > 1 else {}),
                **_launcher_env(
                    launcher,
                    rank=number,
                    world=len(shares),
                    master=f"{master_address}:{master_port}",
                    devices=len(devices),
                ),
            },
        )
        for number, (member, local, local_size, devices) in enumerate(shares)
    )


def device_env(devices: Sequence[str]) -> dict[str, str]:
    """What makes exactly `devices` visible to CUDA, and tells DSec's own code which they are."""
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(devices),
        names.ENV_DEVICES: ",".join(devices),
    }


def _part_env(numbers: Sequence[str]) -> dict[str, str]:
    """What makes only these of a member's cards visible to AMD's and Intel's runtimes, which know cards by number.

    Cards that have names are NVIDIA's. Intel's mask counts cards only where cards are not shown as their stacks.
    """
    if not numbers or not all(number.isdigit() for number in numbers):
        return {}
    shown = ",".join(numbers)
    return {"HIP_VISIBLE_DEVICES": shown, "ZE_AFFINITY_MASK": shown, "ZE_FLAT_DEVICE_HIERARCHY": "COMPOSITE"}


def launched_argv(argv: Sequence[str], *, launcher: str, env: Mapping[str, str], nodes: int) -> list[str]:
    """The command of one rank: as given, or wrapped by torchrun (one agent a member) when that launches it.

    torchrun puts `python` before what it is given, which is right for a script and for `-m module` only.
    """
    if launcher != "torchrun":
        return list(argv)
    devices = [uuid for uuid in env[names.ENV_DEVICES].split(",") if uuid]
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={nodes}",
        f"--node-rank={env[names.ENV_MEMBER]}",
        f"--nproc-per-node={max(1, len(devices))}",
        f"--master-addr={env['MASTER_ADDR']}",
        f"--master-port={env['MASTER_PORT']}",
        *([] if argv[0].endswith(".py") or argv[0] == "-m" else ["--no-python"]),
        *argv,
    ]


def check_call(call: Mapping[str, Any], *, launcher: str, per: str) -> None:
    """Refuse a call that no rank could run, before any rank is started.

    Raises `ClusterError`.
    """
    if call.get("kind") == "function":
        if launcher == "torchrun":
            raise ClusterError("gang.run: torchrun launches commands; use launcher='plain' for a function")
    elif call.get("kind") != "command" or not call.get("argv"):
        raise ClusterError("gang.run: nothing to run; give a function, or a command of at least one word")
    elif launcher == "torchrun" and per != "member":
        raise ClusterError("gang.run: torchrun starts the devices' processes itself; use per='member' with it")


def _launcher_env(launcher: str, *, rank: int, world: int, master: str, devices: int) -> dict[str, str]:
    if launcher != "jax":
        return {}
    return {
        "JAX_COORDINATOR_ADDRESS": master,
        "JAX_NUM_PROCESSES": str(world),
        "JAX_PROCESS_ID": str(rank),
        # Where this is unset, JAX asks its surroundings, and fails of that in a pod without an account's token.
        "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(max(1, devices)))),
    }
