"""`prefetch`: ask the nodes' agents for a bundle ahead of need, for example every evening before the nightly runs.

The flow fetches nothing itself and needs no device: it asks in the ledger, watches, and reports.
"""

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact

from dsec_blocks.cache.bundles import BundleAddress
from dsec_blocks.cache.origins import origin_for
from dsec_blocks.cache.prefetch import EVERY_NODE, Arrival, ByNodes, reporting, watch
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.gateways.home import ledger_url_of
from dsec_blocks.ledger import Ledger
from dsec_blocks.model.units import format_memory

_TENTHS = 10


@flow(name="prefetch", log_prints=True)
def prefetch(
    uri: str,
    nodes: list[str] | None = None,
    include: list[str] | None = None,
    exclude: list[str] | None = None,
) -> list[str]:
    """Bring a model or data set to nodes before anybody needs it there; returns the nodes that have it.

    Args:
        uri: s3://bucket/prefix, hf://owner/name, https://host/file, or a path that the nodes can read.
        nodes: Nodes of the pool; empty means every node whose agent reports.
        include: Only files that fit one of these patterns.
        exclude: No files that fit one of these.
    """
    address = BundleAddress.of(uri, include=include or (), exclude=exclude or ())
    origin_for(address.uri)
    clock = SystemClock()
    ledger = Ledger.open(ledger_url_of(), clock=clock)
    try:
        chosen = reporting(ledger, nodes or [EVERY_NODE], now=clock.now())
        get_run_logger().info("%s is asked for on %s", address, ", ".join(chosen))
        arrivals = watch(ByNodes(ledger, address, chosen, by="flow prefetch"), show=_Told().show)
    finally:
        ledger.close()
    create_markdown_artifact(key="prefetch-report", markdown=report(address, arrivals), description=str(address))
    return [one.node for one in arrivals]


class _Told:
    """Says each node's progress once a tenth, so that a log of an hour stays short."""

    def __init__(self) -> None:
        self._tenths: dict[str, int] = {}

    def show(self, arrivals: list[Arrival]) -> None:
        """Log what is new."""
        for one in arrivals:
            tenths = one.bytes_done * _TENTHS // one.bytes_total if one.bytes_total else 0
            if tenths > self._tenths.get(one.node, 0):
                self._tenths[one.node] = tenths
                total = format_memory(one.bytes_total)
                get_run_logger().info("%s: %s of %s", one.node, format_memory(one.bytes_done), total)


def report(address: BundleAddress, arrivals: list[Arrival]) -> str:
    """The page in the Prefect UI."""
    rows = "\n".join(f"| {one.node} | {format_memory(one.bytes_total)} | {one.state} |" for one in arrivals)
    return f"`{address}`\n\n| Node | Size | |\n|---|---|---|\n{rows}\n"
