"""A real Kubernetes control plane as ordinary processes on this machine, for tests, benchmarks and a first look.

No containers: the API server, etcd, the controllers and the scheduler are the real ones. `binaries` finds or builds
them, `plane` starts and stops them. Two kinds of node: `simulated_nodes` run pods in name only (KWOK plays the
kubelet), on `process_nodes` pods are processes of this machine. `simulated` is both together, for a `pool` to run on.
"""
