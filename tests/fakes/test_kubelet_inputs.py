"""What a container is given by its pod's spec: variables, files, devices."""

import json
import os
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from dsec_blocks.gateways import processes
from dsec_workers.clusters.kubernetes.api import Api
from tests.fakes.kubelet.process_nodes import ProcessNodes
from tests.fixtures.pods import Pods, pod, shell

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture
async def pods(kubernetes_api: Api, namespace: str) -> AsyncIterator[Pods]:
    core = f"/api/v1/namespaces/{namespace}"
    secret = {"metadata": {"name": "s"}, "data": {"KEY": b64encode(b"hidden").decode()}}
    await kubernetes_api.create(f"{core}/secrets", secret, at="test.secret")
    await kubernetes_api.create(
        f"{core}/configmaps", {"metadata": {"name": "c"}, "data": {"COLOUR": "blue"}}, at="test.map"
    )
    yield Pods(kubernetes_api, namespace)


def field(path: str) -> dict[str, object]:
    return {"valueFrom": {"fieldRef": {"fieldPath": path}}}


async def test_variables_come_from_everywhere_a_kubelet_takes_them_from(
    process_nodes: ProcessNodes, pods: Pods, namespace: str
) -> None:
    process_nodes.add("n1", gpus=2, image_env={"FROM_IMAGE": "yes"})
    names = {
        "FROM_IMAGE": None,
        "PLAIN": {"value": "1"},
        "REFERS": {"value": "$(PLAIN)2 $$(PLAIN) $(NOBODY)"},
        "SECRET": {"valueFrom": {"secretKeyRef": {"name": "s", "key": "KEY"}}},
        "MAP": {"valueFrom": {"configMapKeyRef": {"name": "c", "key": "COLOUR"}}},
        "ABSENT": {"valueFrom": {"secretKeyRef": {"name": "nobody", "key": "KEY", "optional": True}}},
        "NAME": field("metadata.name"),
        "NAMESPACE": field("metadata.namespace"),
        "NODE": field("spec.nodeName"),
        "HOST": field("status.hostIP"),
        "LABEL": field("metadata.labels['team']"),
        "CPUS": {"valueFrom": {"resourceFieldRef": {"resource": "requests.cpu"}}},
        "MEMORY": {"valueFrom": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}},
        "C_COLOUR": None,
    }
    container = {
        "env": [{"name": name, **given} for name, given in names.items() if given],
        "envFrom": [{"prefix": "C_", "configMapRef": {"name": "c"}}],
        "resources": {"requests": {"cpu": "1500m"}, "limits": {"memory": "64Mi"}},
    }
    script = f"import json, os; print(json.dumps([os.environ.get(n) for n in {list(names)}]))"
    manifest = pod("p", "python", "-c", script, node="n1", container=container)
    manifest["metadata"]["labels"] = {"team": "red"}
    await pods.create(manifest)
    done = await pods.phase("p", "Succeeded", "Failed")
    found = dict(zip(names, json.loads(await pods.log("p")), strict=True))
    assert found == {
        "FROM_IMAGE": "yes", "PLAIN": "1", "REFERS": "12 $(PLAIN) $(NOBODY)", "SECRET": "hidden", "MAP": "blue",
        "ABSENT": None, "NAME": "p", "NAMESPACE": namespace, "NODE": "n1", "HOST": done["status"]["hostIP"],
        "LABEL": "red", "CPUS": "2", "MEMORY": "64", "C_COLOUR": "blue",
    }  # fmt: skip


async def test_nothing_of_whoever_started_the_stand_in_is_inherited(
    process_nodes: ProcessNodes, pods: Pods, monkeypatch: pytest.MonkeyPatch
) -> None:
    process_nodes.add("n1")
    await pods.create(shell("p", "env", node="n1"))
    await pods.phase("p", "Succeeded")
    names = {line.partition("=")[0] for line in (await pods.log("p")).splitlines()}
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {
        "PATH", "HOME", "HOSTNAME", "LANG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT",
        "KUBERNETES_SERVICE_PORT_HTTPS", "KUBECONFIG", "DSEC_MOUNTS",
    }  # fmt: skip


async def test_a_container_waits_for_the_secret_that_it_names(
    process_nodes: ProcessNodes, pods: Pods, namespace: str
) -> None:
    process_nodes.add("n1")
    container = {"envFrom": [{"secretRef": {"name": "late"}}]}
    await pods.create(shell("p", "echo $WORD", node="n1", container=container))
    waits = await pods.until(
        "p",
        lambda found: (
            (found["status"].get("containerStatuses") or [{}])[0].get("state", {}).get("waiting", {}).get("message")
        ),
    )
    state = waits["status"]["containerStatuses"][0]["state"]["waiting"]
    assert state == {"reason": "CreateContainerConfigError", "message": 'secret "late" not found'}
    late = {"metadata": {"name": "late"}, "stringData": {"WORD": "here"}}
    await pods.api.create(f"/api/v1/namespaces/{namespace}/secrets", late, at="test.secret")
    await pods.phase("p", "Succeeded")
    assert await pods.log("p") == "here\n"


async def test_volumes_are_found_at_their_mount_paths(process_nodes: ProcessNodes, pods: Pods, tmp_path: Path) -> None:
    process_nodes.add("n1", host_paths=[str(tmp_path)])
    (tmp_path / "on-host").write_text("host")
    volumes = [
        {"name": "s", "secret": {"secretName": "s", "items": [{"key": "KEY", "path": "deep/key"}]}},
        {"name": "c", "configMap": {"name": "c"}},
        {"name": "e", "emptyDir": {}},
        {"name": "here", "hostPath": {"path": str(tmp_path)}},
        {"name": "node", "hostPath": {"path": "/var/lib/ours", "type": "DirectoryOrCreate"}},
        {"name": "d", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
    ]
    mounts = [{"name": volume["name"], "mountPath": f"/mnt/{volume['name']}"} for volume in volumes]
    mounts.append({"name": "e", "mountPath": "/sub", "subPath": "below"})
    script = """
      cat /mnt/s/deep/key; echo; cat /mnt/c/COLOUR; echo; cat /mnt/here/on-host; echo; cat /mnt/d/labels; echo
      echo kept > /mnt/node/kept; echo sub > /sub/file; cat "$DATA/below/file"; pwd
    """
    container = {"volumeMounts": mounts, "env": [{"name": "DATA", "value": "/mnt/e"}], "workingDir": "/mnt/e"}
    manifest = shell("p", script, node="n1", container=container, volumes=volumes)
    manifest["metadata"]["labels"] = {"a": "b"}
    await pods.create(manifest, shell("q", "cat /mnt/node/kept", node="n1", container=container, volumes=volumes))
    await pods.phase("p", "Succeeded", "Failed")
    *words, where = (await pods.log("p")).splitlines()
    assert words == ["hidden", "blue", "host", 'a="b"', "sub"]
    assert where.endswith("/volumes/e")
    assert not Path("/var/lib/ours").exists()


async def test_labels_in_a_volume_follow_late(process_nodes: ProcessNodes, pods: Pods) -> None:
    process_nodes.add("n1")
    process_nodes.delay_annotations("n1", 1.0)
    volume = {"downwardAPI": {"items": [{"path": "notes", "fieldRef": {"fieldPath": "metadata.annotations"}}]}}
    script = "while ! grep -q notice /info/notes; do sleep 0.05; done; cat /info/notes"
    container = {"volumeMounts": [{"name": "d", "mountPath": "/info"}]}
    await pods.create(shell("p", script, node="n1", container=container, volumes=[{"name": "d", **volume}]))
    await pods.phase("p", "Running")
    await pods.api.merge(f"{pods.path}/p", {"metadata": {"annotations": {"notice": "leave"}}}, at="test.note")
    await pods.phase("p", "Succeeded")
    assert 'notice="leave"' in await pods.log("p")


async def test_devices_are_chosen_by_the_node_and_held_by_one_pod_at_a_time(
    process_nodes: ProcessNodes, pods: Pods
) -> None:
    spec = process_nodes.add("n1", gpus=4)
    script = "echo $NVIDIA_VISIBLE_DEVICES; while :; do sleep 0.1; done"
    await pods.create(*(shell(name, script, node="n1", gpus=2) for name in "ab"))
    held = [process_nodes.devices((await pods.phase(name, "Running"))["metadata"]["uid"]) for name in "ab"]
    assert sorted(held[0] + held[1]) == sorted(spec.devices["nvidia.com/gpu"])
    await pods.create(shell("c", script, node="n1", gpus=1))
    refused = await pods.phase("c", "Failed")
    assert refused["status"]["reason"] == "OutOfnvidia.com/gpu"
    await pods.delete("a", grace_seconds=0)
    await pods.gone("a")
    await pods.create(shell("d", script, node="n1", gpus=2))
    found = await pods.phase("d", "Running", "Failed")
    while found["status"]["phase"] == "Failed":  # a forced delete does not wait for the containers
        await pods.delete("d", grace_seconds=0)
        await pods.gone("d")
        await pods.create(shell("d", script, node="n1", gpus=2))
        found = await pods.phase("d", "Running", "Failed")
    assert process_nodes.devices(found["metadata"]["uid"]) == held[0]


async def test_a_device_that_another_process_holds_fails_the_container(process_nodes: ProcessNodes, pods: Pods) -> None:
    spec = process_nodes.add("n1", gpus=1)
    lock = processes.hold_lock(
        process_nodes.folder / "devices" / spec.devices["nvidia.com/gpu"][0], blocking=False, at="test.lock"
    )
    assert lock is not None
    await pods.create(shell("p", "true", node="n1", gpus=1))
    state = (await pods.phase("p", "Failed"))["status"]["containerStatuses"][0]["state"]["terminated"]
    assert state["reason"] == "StartError" and "held by another process" in state["message"]
    os.close(lock)
    await pods.create(shell("q", "true", node="n1", gpus=1))
    await pods.phase("q", "Succeeded")
