"""A pod's volumes as directories of this machine."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.fakes.kubelet import fields
from tests.fakes.kubelet.sources import Sources, Unresolved

_ANNOTATIONS = "metadata.annotations"


class Volumes:
    """All volumes of one pod. Secrets and ConfigMaps are read once, at the start; the downward API is refreshed."""

    def __init__(
        self,
        folder: Path,
        pod: Mapping[str, Any],
        *,
        sources: Sources,
        host_root: Path,
        host_paths: Sequence[str],
        addresses: Mapping[str, str],
        allocatable: Mapping[str, str],
    ) -> None:
        self._folder, self._pod, self._sources = folder, pod, sources
        self._host_root, self._host_paths = host_root, host_paths
        self._addresses = addresses
        self._allocatable = allocatable
        self._places: dict[str, Path] = {}
        """By volume name."""

    def place(self, name: str) -> Path:
        """Where a volume is."""
        return self._places[name]

    async def prepare(self) -> None:
        """Make all of them.

        Raises `Unresolved` when one cannot be made (yet).
        """
        for volume in self._pod["spec"].get("volumes") or ():
            self._places[volume["name"]] = await self._made(volume)

    def refresh(self, pod: Mapping[str, Any]) -> None:
        """Write labels and annotations again, as they are in `pod`."""
        self._pod = pod
        for volume in pod["spec"].get("volumes") or ():
            place = self._places.get(volume["name"])
            if place is None:
                continue
            groups = [volume["downwardAPI"]] if "downwardAPI" in volume else []
            groups += [
                s["downwardAPI"] for s in (volume.get("projected") or {}).get("sources") or () if "downwardAPI" in s
            ]
            for group in groups:
                self._write_downward(place, group)

    async def _made(self, volume: Mapping[str, Any]) -> Path:
        if "hostPath" in volume:
            return self._host(volume["hostPath"])
        place = self._folder / str(volume["name"])
        place.mkdir(parents=True, exist_ok=True)
        if "emptyDir" in volume:
            return place
        if "secret" in volume:
            source = {**volume["secret"], "name": volume["secret"]["secretName"]}
            await self._write_keys(place, "secret", source)
        elif "configMap" in volume:
            await self._write_keys(place, "configmap", volume["configMap"])
        elif "downwardAPI" in volume:
            self._write_downward(place, volume["downwardAPI"])
        elif "projected" in volume:
            for source in volume["projected"].get("sources") or ():
                await self._project(place, source)
        else:
            kind = next((key for key in volume if key != "name"), "unknown")
            raise Unresolved(f"process nodes have no volumes of kind {kind}")
        return place

    async def _project(self, place: Path, source: Mapping[str, Any]) -> None:
        if "serviceAccountToken" in source:
            projection = source["serviceAccountToken"]
            _write(place, projection["path"], await self._sources.token(projection))
        elif "secret" in source:
            await self._write_keys(place, "secret", source["secret"])
        elif "configMap" in source:
            await self._write_keys(place, "configmap", source["configMap"])
        elif "downwardAPI" in source:
            self._write_downward(place, source["downwardAPI"])
        else:
            raise Unresolved(f"process nodes do not project {next(iter(source), 'nothing')}")

    async def _write_keys(self, place: Path, kind: str, source: Mapping[str, Any]) -> None:
        name, optional = source.get("name") or "", bool(source.get("optional"))
        content = await self._sources.content(kind, name, optional=optional)
        if not source.get("items"):
            for key, value in content.items():
                _write(place, key, value)
        for item in source.get("items") or ():
            if item["key"] in content:
                _write(place, item["path"], content[item["key"]])
            elif not optional:
                raise Unresolved(f"references non-existent {kind} key: {item['key']}")

    def _write_downward(self, place: Path, source: Mapping[str, Any]) -> None:
        for item in source.get("items") or ():
            if "fieldRef" in item:
                value = fields.field(
                    item["fieldRef"]["fieldPath"],
                    self._pod,
                    pod_ip=self._addresses["pod"],
                    host_ip=self._addresses["host"],
                )
            else:
                reference = item["resourceFieldRef"]
                named = [c for c in self._pod["spec"]["containers"] if c["name"] == reference["containerName"]]
                value = fields.resource(reference, named[0], self._allocatable)
            _write(place, item["path"], value.encode())

    def _host(self, source: Mapping[str, Any]) -> Path:
        path, kind = source["path"], source.get("type") or ""
        is_ours = not any(path == prefix or path.startswith(prefix.rstrip("/") + "/") for prefix in self._host_paths)
        place = self._host_root / path.lstrip("/") if is_ours else Path(path)
        if kind == "DirectoryOrCreate" or (kind == "" and is_ours and not place.exists()):
            place.mkdir(parents=True, exist_ok=True)
        elif kind == "FileOrCreate":
            place.touch()
        elif kind and not place.exists():
            raise Unresolved(f"hostPath type check failed: {path} is not a {kind.lower()}")
        return place

    def remove(self) -> None:
        """Everything but what is the host's."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _write(place: Path, name: str, content: bytes) -> None:
    target = place / name
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, target)
