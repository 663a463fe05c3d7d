"""Options and arguments that several commands share."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Pool = Annotated[
    str | None, typer.Option("--pool", "-p", envvar="DSEC_POOL", help="Work pool; the one of `dsec up` by default.")
]
Run = Annotated[str, typer.Argument(help="A flow run: its id, the beginning of its id, or its name.")]
Why = Annotated[str, typer.Option("--why", help="The reason, kept in the decision log.")]
