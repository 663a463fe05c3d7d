"""The cluster that a trace is replayed on: "58x8" in a word, or nodes and models in a file.

A file (YAML or JSON) is a list of groups, each `{count: 58, gpus: 8, model: H100, memory: 80GiB,
topology: [zone, rack], nvlink: node | none, name: a}`; only `gpus` is required.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dsec_blocks.model.devices import Device, Node
from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.requests import MAX_DEVICES_PER_NODE
from dsec_blocks.model.units import parse_memory

_WORD = re.compile(r"\s*(\d+)\s*[x×]\s*(\d+)(?:\s*@\s*([A-Za-z0-9_.+-]+))?\s*")
_KNOWN = ("count", "gpus", "model", "memory", "topology", "nvlink", "name")
DEFAULT_MEMORY = "80GiB"
MAX_NODES = 100_000


def parse_cluster(spec: str) -> tuple[Node, ...]:
    """The nodes of `58x8`, `4x8@H100`, several of these joined by commas, or a file.

    Raises `InvalidRequest` for anything else.
    """
    path = Path(spec)
    if path.suffix in (".yaml", ".yml", ".json"):
        return _numbered(_groups_of(path), where=str(path))
    groups = []
    for word in spec.split(","):
        match = _WORD.fullmatch(word)
        if match is None:
            raise InvalidRequest(
                f"--cluster: {spec!r} is neither NODESxGPUS such as 58x8 (or 4x8@H100,2x4@A100) "
                "nor a .yaml or .json file"
            )
        groups.append({"count": int(match[1]), "gpus": int(match[2]), "model": match[3] or "GPU"})
    return _numbered(groups, where="--cluster")


def _groups_of(path: Path) -> list[Any]:
    try:
        # YAML reads JSON too.
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidRequest(f"--cluster: {path} cannot be read ({error.strerror})") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"--cluster: {path} is neither YAML nor JSON: {' '.join(str(error).split())}") from None
    if isinstance(found, Mapping):
        found = found.get("nodes")
    if not isinstance(found, list) or not found:
        raise InvalidRequest(f"--cluster: {path} holds no list of node groups, for example: [{{count: 58, gpus: 8}}]")
    return found


def _numbered(groups: list[Any], *, where: str) -> tuple[Node, ...]:
    nodes: list[Node] = []
    names: set[str] = set()
    for number, group in enumerate(groups, start=1):
        about = f"{where}, group {number}"
        if not isinstance(group, Mapping):
            raise InvalidRequest(f"{about}: {group!r} is no mapping such as {{count: 58, gpus: 8}}")
        unknown = [str(key) for key in group if key not in _KNOWN]
        if unknown:
            raise InvalidRequest(f"{about}: {unknown[0]!r} is unknown; there are {', '.join(_KNOWN)}")
        count = _whole(group, "count", 1, MAX_NODES, about, default=1)
        gpus = _whole(group, "gpus", 1, MAX_DEVICES_PER_NODE, about)
        memory = parse_memory(str(group.get("memory", DEFAULT_MEMORY)), field=f"{about}: memory")
        topology = group.get("topology", ())
        if not isinstance(topology, (list, tuple)) or not all(isinstance(part, str) for part in topology):
            raise InvalidRequest(f"{about}: topology is {topology!r}; give a list of names, the widest level first")
        nvlink = group.get("nvlink", "node")
        if nvlink not in ("node", "none"):
            raise InvalidRequest(f"{about}: nvlink is {nvlink!r}; give node or none")
        prefix = str(group.get("name", "node" if len(groups) == 1 else f"node-{number}"))
        width = len(str(count - 1))
        for index in range(count):
            name = f"{prefix}-{index:0{width}}"
            if name in names:
                raise InvalidRequest(f"{about}: there is a node {name} already; give the group another name")
            names.add(name)
            nodes.append(
                Node(
                    name=name,
                    topology=tuple(topology),
                    devices=tuple(
                        Device(
                            uuid=f"{name}/{bit}",
                            node=name,
                            index=bit,
                            model=str(group.get("model", "GPU")),
                            memory_bytes=memory,
                            nvlink_domain=name if nvlink == "node" else "",
                        )
                        for bit in range(gpus)
                    ),
                )
            )
    return tuple(nodes)


def _whole(group: Mapping[str, Any], name: str, low: int, high: int, about: str, default: int | None = None) -> int:
    value = group.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(f"{about}: {name} is {value!r}; a whole number from {low} to {high:,} is needed")
    return value
