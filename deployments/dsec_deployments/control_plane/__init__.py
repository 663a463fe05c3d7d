"""A real Kubernetes control plane as ordinary processes on this machine, for tests, benchmarks and a first look.

No containers and no kubelet: KWOK plays the nodes, the API server, etcd, the controllers and the scheduler are the
real ones. `binaries` finds or builds them, `plane` starts and stops them, `simulated_nodes` makes nodes with GPUs.
"""
