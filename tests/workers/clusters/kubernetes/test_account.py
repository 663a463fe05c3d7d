"""A worker in a pod speaks to its cluster as the pod's own account, with what the kubelet has put there."""

from datetime import timedelta
from pathlib import Path

import pytest
from kubernetes_asyncio.client import ApiClient
from kubernetes_asyncio.config import incluster_config, kube_config

from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.credentials import ENV_ACCOUNT, ClusterAccess, NoCluster, client_configuration
from dsec_workers.clusters.opening import _access


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a pod's account, in a pod that finds its API server as any does."""
    (tmp_path / "token").write_text("the first token")
    (tmp_path / "ca.crt").write_text("a certificate")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return tmp_path


async def test_the_pod_s_account_is_found_where_it_is_mounted(account: Path) -> None:
    access = await _access({"KUBECONFIG": "", ENV_ACCOUNT: str(account)})
    found = await client_configuration(access)
    assert (found.host, found.ssl_ca_cert) == ("https://10.0.0.1:443", str(account / "ca.crt"))


async def test_a_token_that_the_kubelet_has_renewed_is_used(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incluster_config, "TOKEN_REFRESH_PERIOD", timedelta(0))
    configuration = await client_configuration(ClusterAccess(account_directory=str(account)))
    configuration.ssl_ca_cert = None  # there is none
    async with Api(ApiClient(configuration=configuration)) as api:
        assert (await api._headers())["authorization"] == "Bearer the first token"
        (account / "token").write_text("the next token")
        assert (await api._headers())["authorization"] == "Bearer the next token"


async def test_without_an_account_and_a_kubeconfig_there_is_no_cluster(
    account: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (account / "token").unlink()
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(account / "none"))
    with pytest.raises(NoCluster, match=r"the pod's own account and ~/\.kube/config cannot be used"):
        await client_configuration(ClusterAccess(account_directory=str(account)))
