"""Taking a staging directory away: out of sight in one rename, then removed."""

from dsec_blocks.cache.store.layout import Layout
from dsec_blocks.gateways import files


def drop_staging(layout: Layout, reservation: str) -> None:
    """Remove what was written for a reservation; its mark is the caller's to take away, afterwards."""
    trashed = layout.trash / f"staging-{reservation}"
    try:
        files.rename(layout.staging / reservation, trashed, at="cache.staging.drop")
    except FileNotFoundError:
        return
    files.remove_tree(trashed, at="cache.staging.remove")
