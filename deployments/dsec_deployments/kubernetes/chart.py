"""The chart's manifests for given values: rendered by helm, which knows the chart language; applied by us."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from dsec_blocks.gateways import processes
from dsec_blocks.model.errors import DsecError, InvalidRequest
from dsec_deployments.control_plane import binaries

Object = dict[str, Any]
OWNER = "dsec-deploy"
"""Who we are, as the manager of the fields that we apply and in the objects' labels."""
RENDER_SECONDS = 60.0


class NoChart(DsecError):
    """There is no chart to render here."""

    exit_code = 3


def folder() -> Path:
    """The chart in this checkout.

    Raises `NoChart` for an installed package without one.
    """
    found = Path(__file__).resolve().parents[2] / "kubernetes" / "dsec"
    if not (found / "Chart.yaml").exists():
        raise NoChart("the Helm chart is not part of the installed package; run this from a checkout of DSec")
    return found


def render(
    *,
    release: str,
    namespace: str,
    kubernetes_version: str,
    values: Sequence[Path] = (),
    assignments: Sequence[str] = (),
) -> list[Object]:
    """All objects of a release, in the order in which they are to be applied.

    `values` are files, `assignments` are `path.to.value=…` and win over them. Raises `InvalidRequest` with helm's words
    when the values are not what the chart's schema allows, `MissingBinaries` when there is no helm.
    """
    for path in values:
        if not path.exists():
            raise InvalidRequest(f"--values: {path} does not exist")
    helm = binaries.provide(("helm",))["helm"]
    command = [str(helm), "template", release, str(folder()), "--namespace", namespace]
    command += ["--kube-version", kubernetes_version, "--set", f"managedBy={OWNER}"]
    for path in values:
        command += ["--values", str(path)]
    for assignment in assignments:
        command += ["--set", assignment]
    answer = processes.output_of(command, seconds=RENDER_SECONDS, at="deploy.kubernetes.render")
    if answer is None:
        raise InvalidRequest(f"helm did not render the chart within {RENDER_SECONDS:g} s")
    status, out, err = answer
    if status != 0:
        lines = [line.strip() for line in err.decode(errors="replace").splitlines() if line.strip()]
        raise InvalidRequest("the chart cannot be rendered: " + " ".join(lines))
    return [document for document in yaml.safe_load_all(out.decode()) if document]
