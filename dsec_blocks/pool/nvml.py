"""What the NVIDIA driver knows of this machine's cards, asked for in a child process with a deadline.

NVML can hang for minutes in the kernel when a card is sick, and a process that hangs there cannot be interrupted; so
no process that matters ever calls it. Without a driver there are no cards, which is no error.
"""

import ctypes
import json
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsec_blocks.gateways import processes
from dsec_blocks.model.devices import Device, Node
from dsec_blocks.model.errors import ClusterError

DEADLINE_SECONDS = 15.0
_PCI_DEVICES = Path("/sys/bus/pci/devices")
_VENDOR_WORDS = re.compile(r"^(NVIDIA|Tesla|Quadro|GeForce)\s+", re.IGNORECASE)


def probe_node(*, name: str | None = None, deadline_seconds: float = DEADLINE_SECONDS) -> Node:
    """The machine it runs on as a node, called `name` (default: its host name), with the cards that NVML lists.

    Raises `ClusterError` when there is a driver that does not answer, or not within the deadline.
    """
    node = name or socket.gethostname()
    program = [sys.executable, "-P", "-c", "from dsec_blocks.pool import nvml; nvml.main()"]
    answer = processes.output_of(program, seconds=deadline_seconds, at="pool.nvml.probe")
    if answer is None:
        raise ClusterError(
            f"the NVIDIA driver of {node} did not answer within {deadline_seconds:g} s; a card may be hanging: "
            "look at `nvidia-smi` and `dmesg`, or declare the devices instead"
        )
    status, out, err = answer
    if status != 0:
        last = (err.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise ClusterError(f"the NVIDIA driver of {node} cannot be asked: {last}")
    return Node(name=node, devices=devices_of(json.loads(out), node=node))


def devices_of(cards: Sequence[Mapping[str, Any]], *, node: str) -> tuple[Device, ...]:
    """Devices made of what `read_cards` read, with the NVLink domains that its links imply."""
    domains = nvlink_domains([(card["pci"], card["links"]) for card in cards])
    return tuple(
        Device(
            uuid=card["uuid"],
            node=node,
            index=index,
            model=short_model(card["name"]),
            memory_bytes=card["memory_bytes"],
            nvlink_domain=card["fabric"] or (f"{node}/nvlink-{domain}" if domain is not None else ""),
            numa_node=card["numa_node"],
        )
        for index, (card, domain) in enumerate(zip(cards, domains, strict=True))
    )


def nvlink_domains(cards: Sequence[tuple[str, Sequence[str]]]) -> list[int | None]:
    """For each card (its PCI address, and those at the other ends of its links) the number of its NVLink domain.

    Cards are together when a link joins them, or when both have a link to the same switch. None: no link.
    """
    groups: list[tuple[set[str], set[int]]] = []  # (addresses, cards)
    for number, (address, links) in enumerate(cards):
        if not links:
            continue
        addresses, members = {address, *links}, {number}
        apart = []
        for group in groups:
            if group[0] & addresses:
                addresses |= group[0]
                members |= group[1]
            else:
                apart.append(group)
        groups = [*apart, (addresses, members)]
    groups.sort(key=lambda group: min(group[1]))
    return [next((n for n, (_, members) in enumerate(groups) if i in members), None) for i in range(len(cards))]


def short_model(name: str) -> str:
    """The model as people ask for it: H100 for "NVIDIA H100 80GB HBM3", A100 for "NVIDIA A100-SXM4-80GB"."""
    words = name.strip()
    while (shorter := _VENDOR_WORDS.sub("", words)) != words:
        words = shorter
    first, *rest = words.split()
    if first.upper() in ("RTX", "GTX", "TITAN") and rest:
        return " ".join([first, *(word for word in rest if word not in ("Generation", "GPU", "Laptop"))])
    return first.split("-")[0]


def read_cards() -> list[dict[str, Any]]:
    """All cards as NVML lists them; empty without a driver. Call it in a process that may be killed."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded, pynvml.NVMLError_NoPermission):
        return []
    cards = []
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                cards.append(_read_card(pynvml, index))
            except pynvml.NVMLError as error:
                print(f"card {index} is left out: {error}", file=sys.stderr)  # the others are not worse for it
    finally:
        pynvml.nvmlShutdown()
    return cards


def main() -> None:
    """Print all cards as JSON: what the child does."""
    json.dump(read_cards(), sys.stdout)


def _read_card(pynvml: Any, index: int) -> dict[str, Any]:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    pci = _address(_text(pynvml.nvmlDeviceGetPciInfo(handle).busId))
    return {
        "uuid": _text(pynvml.nvmlDeviceGetUUID(handle)),
        "name": _text(pynvml.nvmlDeviceGetName(handle)),
        "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        "pci": pci,
        "links": _links(pynvml, handle),
        "fabric": _fabric(pynvml, handle),
        "numa_node": _numa_node(pci),
    }


def _links(pynvml: Any, handle: Any) -> list[str]:
    ends = set()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            if pynvml.nvmlDeviceGetNvLinkState(handle, link) == pynvml.NVML_FEATURE_ENABLED:
                ends.add(_address(_text(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)))
        except pynvml.NVMLError:
            continue
    return sorted(ends)


def _fabric(pynvml: Any, handle: Any) -> str:
    """The NVLink fabric's cluster and clique (racks such as GB200 NVL72, where a domain spans nodes); else empty."""
    try:
        info = pynvml.c_nvmlGpuFabricInfoV_t()
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        cluster = bytes(info.clusterUuid).hex()
    except (AttributeError, TypeError, pynvml.NVMLError):
        return ""
    return f"fabric-{cluster}-{info.cliqueId}" if cluster.strip("0") else ""


def _numa_node(pci: str) -> int:
    try:
        return max(0, int((_PCI_DEVICES / pci / "numa_node").read_text()))
    except (OSError, ValueError):
        return 0


def _address(bus_id: str) -> str:
    """The kernel's form of a PCI address: NVML writes the domain with eight digits, sysfs with four."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
