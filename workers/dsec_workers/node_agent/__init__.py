"""The node's agent: one process a machine that owns its cache, fetches ahead of need, and says what is there.

Starts do without it: a member whose inputs are not there fetches them itself. The agent is what makes that rare.
"""
