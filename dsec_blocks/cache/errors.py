"""What can go wrong with cached data, one class for each thing that a person does something different about.

Every message names the object (and never a secret). None of these leaves anything half-published: what was fetched so
far lies in a staging directory that nobody reads.
"""

from dsec_blocks.model.errors import DsecError


class CacheError(DsecError):
    """Data cannot be fetched, kept or read."""


class InvalidCacheSetting(CacheError):
    """A setting of the cache or the transfer that cannot work; the message names the field."""

    exit_code = 2


class UnsafePath(CacheError):
    """A path inside a bundle that would leave the directory it belongs into (`../`, absolute, empty)."""

    exit_code = 2


class UnknownOrigin(CacheError):
    """An address that no origin understands."""

    exit_code = 2


class BundleMissing(CacheError):
    """There is nothing at the address, or the include and exclude patterns leave nothing of it."""


class OriginError(CacheError):
    """The origin did not deliver."""


class OriginRefused(OriginError):
    """The origin does not let these credentials read the object (HTTP 401 or 403)."""


class OriginUnreachable(OriginError):
    """The origin did not answer for as long as the retries last."""

    exit_code = 3


class RootGone(BundleMissing, OriginUnreachable):
    """A path at which there is nothing: deleted, or on a share that is not mounted. Nobody can tell which, so a copy
    that is resident still counts.
    """

    exit_code = 1


class BadManifest(OriginError):
    """A manifest at an origin that cannot be followed; the message says what is wrong in it."""


class OriginChanged(OriginError):
    """The object, or the listing of its bundle, is not what it was when the fetch began."""


class ContentMismatch(OriginError):
    """All bytes arrived and they are not the content that was promised."""


class TransferCancelled(CacheError):
    """Whoever asked for the data no longer wants it."""


class LocalDiskError(CacheError):
    """The node's own disk refused a write: full, read-only, or broken."""


class CacheFull(CacheError):
    """There is no room: what is there is held by somebody; the message says by whom and since when."""


class BundleTooLarge(CacheError):
    """A bundle that would not fit even if the cache were empty."""


class WeightsUnreadable(CacheError):
    """A weights file that is not whole, or not what its ending says."""
