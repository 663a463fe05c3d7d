"""Moving objects from an origin into a staging directory: in parallel, verified in the same pass, resumable.

What is fetched is complete, hashed and fsynced, and nobody reads it yet: publishing is somebody else's business.
"""

from dsec_blocks.cache.transfer.fetching import Fetched, fetch
from dsec_blocks.cache.transfer.settings import TransferSettings

__all__ = ["Fetched", "TransferSettings", "fetch"]
