"""`dsec agent`: the process that owns this machine's cache."""

from pathlib import Path
from typing import Annotated

import typer


def agent(
    node: Annotated[
        list[str] | None,
        typer.Option("--node", help="What the pool calls this machine; again for each declared node. Its host name."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Where to listen; 127.0.0.1 by default.")] = None,
    port: Annotated[int | None, typer.Option(help="0, the default: any free one, told in agent/address.json.")] = None,
    directory: Annotated[
        Path | None,
        typer.Option("--directory", "-d", envvar="DSEC_CACHE_DIR", help="The cache; `cache` below DSEC_HOME."),
    ] = None,
    limit: Annotated[
        str | None, typer.Option(envvar="DSEC_CACHE_LIMIT", help="How much it may take, for example 500GiB.")
    ] = None,
    block: Annotated[
        str | None, typer.Option(envvar="DSEC_CACHE_BLOCK", help="Take all of this from a NodeCache block instead.")
    ] = None,
    open_metrics: Annotated[
        bool, typer.Option("--open-metrics", help="Let /metrics be read without the token.")
    ] = False,
) -> None:
    """Own this machine's cache until Ctrl-C or SIGTERM: fetch ahead of need, and say what is here.

    Its API needs the token in DSEC_HOME/agent/token. `dsec up` starts one.

    Example: [bold]dsec agent --limit 500GiB --port 9410 --open-metrics[/]
    """
    import logging

    from dsec_deployments.cli.output import messages
    from dsec_workers.node_agent.agent import run
    from dsec_workers.node_agent.opening import cache_of
    from dsec_workers.node_agent.settings import AgentSettings

    settings = AgentSettings.from_environment(
        nodes=tuple(node or ()), host=host, port=port, metrics_are_open=open_metrics
    )
    cache = cache_of(directory=directory, limit=limit, block=block)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s", force=True)
    logging.getLogger("dsec_workers").setLevel(logging.INFO)
    run(settings, cache, note=messages.print)
