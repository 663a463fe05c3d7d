"""How a pool finds the cluster that `dsec up` started for it: what its worker is told, and which nodes are its own."""

from pathlib import Path

from dsec_blocks.model.names import ENV_CLUSTER

NAMESPACE = "default"
NODE_LABEL = "dsec.io/process-node"


def environment(home: Path) -> dict[str, str]:
    """What a worker of such a pool finds in its environment."""
    return {
        ENV_CLUSTER: "kubernetes",
        "KUBECONFIG": str(home / "control-plane" / "admin.kubeconfig"),
        "DSEC_NAMESPACE": NAMESPACE,
        "DSEC_NODE_SELECTOR": f"{NODE_LABEL}=true",
    }
