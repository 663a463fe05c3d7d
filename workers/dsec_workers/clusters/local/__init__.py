"""Gangs as processes on one machine: the cluster adapter that needs no Kubernetes and no GPU.

`cluster` is the worker's side; `forkserver`, `supervisor`, `member`, `engine` and `rank` are what runs in the
processes it starts (docs/architecture.md, "Processes on one machine").
"""

from dsec_workers.clusters.local.cluster import LocalCluster

__all__ = ["LocalCluster"]
