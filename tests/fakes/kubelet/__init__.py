"""A kubelet stand-in: real pods' containers as processes of this machine, on nodes of a real API server.

It exists because a kubelet needs a container runtime and root, and because a simulated node runs nothing: here a flow
trains, gets SIGTERM, and leaves with an exit code. `README.md` says what a container sees. Two processes: `runtime`
forks containers and leaves none behind, whatever happens to the other, which speaks to the API server.

Layers: `node` > `pod` > `container` > (`environment`, `volumes`, `devices`, `probes`) > `runtime_client` | `runtime` >
`shim`. Pure: `admission`, `expansion`, `fields`, `mounts`, `node_object`, `status`.
"""
