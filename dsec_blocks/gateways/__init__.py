"""The only doors through which durable effects leave a process: each call passes a named fault point.

`faults` names the points; `files` is the file system, `objects` the object store, `processes` starts and signals.
The ledger's transaction and the Prefect API have their gateways beside their own code.
"""
