"""Process nodes: what is missing is said in one line before anything is started."""

from pathlib import Path

import pytest

from dsec_blocks.gateways.clock import SystemClock
from dsec_deployments.control_plane import plane, process_nodes, simulated

NOWHERE = plane.ControlPlane(server="", token="", kubeconfig="", etcd_port=1, api_port=1)


def test_an_installation_without_a_clone_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(process_nodes, "_checkout", lambda: None)
    line = r"^pods run as processes by .* \(tests/fakes/kubelet\), which is not here; install DSec from a clone"
    with pytest.raises(process_nodes.NoProcessNodes, match=line):
        simulated.require(progress=lambda _: None)
    with pytest.raises(process_nodes.NoProcessNodes, match=line):
        process_nodes.start(tmp_path, NOWHERE, clock=SystemClock())
    assert list(tmp_path.iterdir()) == []


def test_in_this_clone_they_are_there() -> None:
    assert process_nodes.why_not() is None


def test_a_home_too_deep_for_sockets_is_refused_in_one_line(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    with pytest.raises(process_nodes.NoProcessNodes, match=r"too long a path for sockets.*DSEC_HOME"):
        process_nodes.start(deep, NOWHERE, clock=SystemClock())
    assert not deep.exists()
