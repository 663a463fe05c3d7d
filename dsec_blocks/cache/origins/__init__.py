"""Origins: where data comes from. Each turns an address into a listing and reads ranges of what it listed."""

from dsec_blocks.cache.origins.objects import Origin, RemoteObject, safe_path, wanted
from dsec_blocks.cache.origins.opening import OriginCredentials, origin_for

__all__ = ["Origin", "OriginCredentials", "RemoteObject", "origin_for", "safe_path", "wanted"]
