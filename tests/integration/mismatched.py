"""A flow whose `@gang` asks for another gang than its deployment does, and that would be retried if it failed."""

from pathlib import Path

from prefect import flow

from dsec_blocks import gang


@gang(nodes=2, devices_per_node=1)
@flow(retries=3, retry_delay_seconds=0)
def mismatched(where: str) -> None:
    """Says that its code ran."""
    Path(where).write_text("ran")
