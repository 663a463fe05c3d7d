"""All nodes of one stand-in, what they share, and the socket on which tests give it orders."""

import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
from aiohttp import web
from anyio.abc import TaskGroup

from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess, client_configuration
from tests.fakes.kubelet import logs
from tests.fakes.kubelet.admission import Refusal
from tests.fakes.kubelet.container import Container
from tests.fakes.kubelet.loopback import Addresses
from tests.fakes.kubelet.node import ProcessNode
from tests.fakes.kubelet.node_spec import NodeSpec
from tests.fakes.kubelet.runtime_client import RuntimeClient

CONTROL = "control.sock"


async def serve(channel: socket.socket, *, kubeconfig: str, folder: Path) -> None:
    """Serve until the runtime ends. The control socket is there once orders are taken."""
    access = ClusterAccess(kubeconfig=kubeconfig)
    server = urlsplit((await client_configuration(access)).host)
    runtime = RuntimeClient(channel)
    reader = await runtime.connect()
    async with await Api.connect(access) as api, anyio.create_task_group() as group:
        standing = StandIn(
            api, runtime, folder=folder, group=group, api_server=(server.hostname or "", str(server.port))
        )
        await standing.open()
        await runtime.run(reader)
        group.cancel_scope.cancel()


class StandIn:
    """Nodes by name."""

    def __init__(
        self, api: Api, runtime: RuntimeClient, *, folder: Path, group: TaskGroup, api_server: tuple[str, str]
    ) -> None:
        self._api, self._runtime, self._folder, self._group = api, runtime, folder, group
        self._api_server = api_server
        self._addresses = Addresses()
        self._nodes: dict[str, ProcessNode] = {}
        self._logs = web.AppRunner(logs.application(self._find))
        self._certificate = logs.self_signed(folder)
        self._orders: dict[str, Callable[[ProcessNode, dict[str, Any]], Awaitable[Any]]] = {
            "silence": lambda node, given: node.silence(**given),
            "unwell": lambda node, given: node.unwell(),
            "kill": lambda node, given: node.kill(**given),
            "revive": lambda node, given: node.revive(),
            "remove": self._remove,
            "reject_next": self._reject_next,
            "slow_start": self._slow_start,
            "hold_images": self._hold_images,
            "release_images": self._release_images,
            "delay_annotations": self._delay_annotations,
        }

    async def open(self) -> None:
        """Take orders on the control socket."""
        await self._logs.setup()
        control = web.Application()
        control.router.add_post("/nodes", self._add)
        control.router.add_post("/nodes/{node}/{order}", self._order)
        control.router.add_get("/pods", self._list)
        runner = web.AppRunner(control)
        await runner.setup()
        await web.UnixSite(runner, str(self._folder / CONTROL)).start()

    async def _add(self, request: web.Request) -> web.Response:
        spec = NodeSpec.from_json(await request.json())
        known = self._nodes.get(spec.name)
        if known is not None:
            return web.json_response({"address": known.address})
        address = self._addresses.for_node()
        listening = socket.create_server((address, 0))
        await web.SockSite(self._logs, listening, ssl_context=self._certificate).start()
        node = self._nodes[spec.name] = ProcessNode(
            spec,
            api=self._api,
            runtime=self._runtime,
            addresses=self._addresses,
            address=address,
            port=listening.getsockname()[1],
            folder=self._folder,
            group=self._group,
            api_server=self._api_server,
        )
        await node.join()
        return web.json_response({"address": address})

    async def _order(self, request: web.Request) -> web.Response:
        name, order = request.match_info["node"], request.match_info["order"]
        if name not in self._nodes or order not in self._orders:
            raise web.HTTPNotFound(text=f"no node {name} or no order {order}")
        await self._orders[order](self._nodes[name], await request.json())
        return web.json_response({})

    async def _list(self, _request: web.Request) -> web.Response:
        return web.json_response(
            [
                {
                    "uid": pod.uid,
                    "namespace": pod.namespace,
                    "name": pod.name,
                    "node": node.spec.name,
                    "ip": pod.ip,
                    "folder": str(pod.folder),
                    "devices": {c.name: list(node.devices.of(pod.uid, c.name)) for c in pod.containers},
                    "pids": {c.name: c.pid for c in pod.containers},
                }
                for node in self._nodes.values()
                for pod in node.pods.values()
            ]
        )

    def _find(self, namespace: str, pod: str, container: str) -> Container | None:
        for node in self._nodes.values():
            for found in node.pods.values():
                if (found.namespace, found.name) == (namespace, pod):
                    return next((c for c in found.containers if c.name == container), None)
        return None

    async def _remove(self, node: ProcessNode, _given: dict[str, Any]) -> None:
        del self._nodes[node.spec.name]
        await node.leave()

    async def _reject_next(self, node: ProcessNode, given: dict[str, Any]) -> None:
        node.faults.refusals.append(Refusal(reason=given["reason"], message=given["message"]))

    async def _slow_start(self, node: ProcessNode, given: dict[str, Any]) -> None:
        node.faults.start_delay_seconds = given["seconds"]

    async def _delay_annotations(self, node: ProcessNode, given: dict[str, Any]) -> None:
        node.faults.annotation_delay_seconds = given["seconds"]

    async def _hold_images(self, node: ProcessNode, given: dict[str, Any]) -> None:
        node.faults.hold_images(quietly=given["quietly"])

    async def _release_images(self, node: ProcessNode, _given: dict[str, Any]) -> None:
        node.faults.release_images()
