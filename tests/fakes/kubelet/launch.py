"""How a container's process is started: its command, variables and mounts put together, its devices locked."""

import json
import os
import ssl
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.fakes.kubelet import environment
from tests.fakes.kubelet.expansion import expand
from tests.fakes.kubelet.mounts import replace_paths
from tests.fakes.kubelet.runtime_client import Process, Refused
from tests.fakes.kubelet.sources import Sources
from tests.fakes.kubelet.volumes import Volumes

if TYPE_CHECKING:
    from tests.fakes.kubelet.node import ProcessNode

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class Launch:
    """Starts the processes of one pod."""

    def __init__(self, node: "ProcessNode", pod: Mapping[str, Any], *, folder: Path, ip: str) -> None:
        self._node, self._pod, self._folder, self._ip = node, pod, folder, ip
        self._sources = Sources(node.api, pod)
        self._volumes = Volumes(
            folder / "volumes",
            pod,
            sources=self._sources,
            host_root=node.folder / "host",
            host_paths=node.spec.host_paths,
            addresses={"pod": ip, "host": node.address},
            allocatable=node.allocatable,
        )
        self._variables: dict[str, dict[str, str]] = {}

    async def prepare(self) -> None:
        """Make the pod's volumes. Raises `Unresolved`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        await self._volumes.prepare()

    def refresh(self, pod: Mapping[str, Any]) -> None:
        """Bring labels and annotations in volumes up to date."""
        if self._folder.exists():
            self._volumes.refresh(pod)

    def mounts(self, container: Mapping[str, Any], root: Path) -> dict[str, str]:
        """Local path by mount path; the termination log is one."""
        log = container.get("terminationMessagePath") or "/dev/termination-log"
        found = {log: str(root / log.lstrip("/"))}
        for mount in container.get("volumeMounts") or ():
            place = self._volumes.place(mount["name"])
            below = mount.get("subPath") or expand(
                mount.get("subPathExpr") or "", self._variables.get(container["name"], {})
            )
            if below:
                place = place / below
                if not place.exists():
                    place.mkdir(parents=True)
            found[mount["mountPath"]] = str(place)
        return found

    async def start(self, container: Mapping[str, Any], *, root: Path, termination_log: Path, log: Path) -> Process:
        """Start a container's PID 1.

        Raises `Unresolved` when something it refers to is missing, `Refused` when it cannot be executed.
        """
        variables = await self._resolve(container, root)
        mounts = self.mounts(container, root)
        command = container.get("command") or self._node.spec.entrypoints.get(container.get("image") or "") or ()
        argv = [expand(word, variables) for word in [*command, *(container.get("args") or ())]]
        if not argv:
            raise Refused("no command specified")
        env = {name: replace_paths(value, mounts) for name, value in variables.items()}
        env["DSEC_MOUNTS"] = json.dumps(mounts)
        uuids = self._node.devices.of(self._pod["metadata"]["uid"], container["name"])
        return await self._node.runtime.start(
            [replace_paths(word, mounts) for word in argv],
            env=env,
            cwd=self._working_directory(container, mounts, root),
            log=log,
            locks=[self._node.locks / uuid for uuid in uuids],
        )

    async def start_beside(self, container: Mapping[str, Any], command: Sequence[str], *, root: Path) -> Process:
        """Start a command with a running container's variables; its output goes nowhere."""
        mounts = self.mounts(container, root)
        known = self._variables.get(container["name"], {})
        env = {name: replace_paths(value, mounts) for name, value in known.items()}
        cwd = self._working_directory(container, mounts, root)
        return await self._node.runtime.start(list(command), env=env, cwd=cwd, log=Path(os.devnull))

    async def _resolve(self, container: Mapping[str, Any], root: Path) -> dict[str, str]:
        hostname = self._pod["spec"].get("hostname") or self._pod["metadata"]["name"]
        base = environment.image_environment(home=root, hostname=hostname, more=self._node.spec.image_env)
        host, port = self._node.api_server
        base |= {
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "KUBERNETES_SERVICE_PORT_HTTPS": port,
        }
        account = next((m for m in container.get("volumeMounts") or () if m["mountPath"] == _ACCOUNT), None)
        if account is not None:
            base["KUBECONFIG"] = str(self._kubeconfig(self._volumes.place(account["name"]), f"https://{host}:{port}"))
        uuids = self._node.devices.of(self._pod["metadata"]["uid"], container["name"])
        if uuids:
            base["NVIDIA_VISIBLE_DEVICES"] = ",".join(uuids)
        self._variables[container["name"]] = found = await environment.resolve(
            container,
            self._pod,
            base=base,
            sources=self._sources,
            pod_ip=self._ip,
            host_ip=self._node.address,
            allocatable=self._node.allocatable,
        )
        return found

    def _working_directory(self, container: Mapping[str, Any], mounts: Mapping[str, str], root: Path) -> Path:
        asked = container.get("workingDir") or "/"
        place = Path(replace_paths(asked, mounts))
        if str(place) == asked:  # in no mount, so in the image
            place = root / asked.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _kubeconfig(self, account: Path, server: str) -> Path:
        """What in-cluster clients find at fixed paths, for clients that cannot look there."""
        authority = account / "ca.crt"
        cluster: dict[str, Any] = {"server": server}
        if authority.exists() and ssl.PEM_HEADER in authority.read_text():
            cluster["certificate-authority-data"] = b64encode(authority.read_bytes()).decode()
        else:
            cluster["insecure-skip-tls-verify"] = True
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "account", "user": {"tokenFile": str(account / "token")}}],
            "contexts": [
                {
                    "name": "here",
                    "context": {
                        "cluster": "here",
                        "user": "account",
                        "namespace": self._pod["metadata"]["namespace"],
                    },
                }
            ],
            "current-context": "here",
        }
        place = self._folder / "kubeconfig"
        place.write_text(json.dumps(document))
        return place
