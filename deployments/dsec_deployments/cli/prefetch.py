"""`dsec prefetch`: a bundle on nodes before anybody needs it there."""

from __future__ import annotations

from typing import Annotated

import typer

from dsec_deployments.cli.options import Json, Pool


def prefetch(
    uri: Annotated[str, typer.Argument(help="s3://bucket/prefix, hf://owner/name, https://host/file, or a path.")],
    nodes: Annotated[
        str | None, typer.Option(help="Nodes of the pool, with commas, or `all`. Without: this machine.")
    ] = None,
    include: Annotated[list[str] | None, typer.Option(help="Only files that fit; may be given again.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="No files that fit; may be given again.")] = None,
    json: Json = False,
    pool: Pool = None,
) -> None:
    """Fetch a model or data set ahead of need, and show how it arrives.

    Starts that wait for their own data go first. Ctrl-C takes it back; what arrived is kept and resumed the next time.

    Example: [bold]dsec prefetch s3://models/llama-3-8b --include '*.safetensors' --nodes node-0,node-1[/]
    """
    from time import monotonic

    from dsec_blocks.cache.bundles import BundleAddress
    from dsec_blocks.cache.opening import open_cache
    from dsec_blocks.cache.origins import origin_for
    from dsec_blocks.cache.prefetch import watch
    from dsec_blocks.model.errors import InvalidRequest
    from dsec_blocks.model.units import format_duration, format_memory
    from dsec_deployments import installation, prefetching
    from dsec_deployments.cli.output import console, messages, print_json
    from dsec_deployments.cli.session import session
    from dsec_deployments.cli.transfers import Bars

    address = BundleAddress.of(uri, include=include or (), exclude=exclude or ())
    origin_for(address.uri)
    names = [name.strip() for name in (nodes or "").split(",") if name.strip()]
    if nodes is not None and not names:
        raise InvalidRequest("--nodes: name at least one node, or leave it out for this machine")
    with session(pool) as s:
        asked = prefetching.ask(
            address,
            names,
            home=installation.home(),
            ledger=lambda: s.ledger,
            cache=open_cache,
            clock=s.clock,
            by=s.user,
            note=messages.print,
        )
        began = monotonic()
        with Bars(messages) as bars:
            arrivals = watch(asked, show=bars.show)
    if json:
        print_json(arrivals)
        return
    size = max(one.bytes_total for one in arrivals)
    where = ", ".join(one.node for one in arrivals)
    console.print(f"{address} ({format_memory(size)}) is on {where}, after {format_duration(monotonic() - began)}")
