"""The Kubernetes adapter: the same decisions, carried out as Jobs.

Objects are plain dicts, as the API server sends them. What they mean for scheduling is worked out by pure modules:
`resources` (vendors' names and quantities), `occupancy` (what pods take on a node), `node_model` (nodes for `plan()`).
"""
