"""One tree of errors whose messages say what happened, on which object, and what to do next.

The command line prints `str(error)` and exits with `exit_code`; nothing else is shown to a user.
"""


class DsecError(Exception):
    """Root of every error that DSec raises on purpose."""

    exit_code = 1


class InvalidRequest(DsecError):
    """A gang request that no cluster could satisfy as written; the message names the field."""

    exit_code = 2


class UnknownTeam(DsecError):
    """A team (work queue) that the ledger does not know."""

    exit_code = 2


class GangMismatch(DsecError):
    """A flow's `@gang(...)` asks for something else than what was admitted for its run."""

    exit_code = 2


class NotInGang(DsecError):
    """A call that only makes sense inside a gang, made outside of one."""


class SubmitRefused(DsecError):
    """A gang flow was handed to a task runner's `submit()`, which cannot reserve devices."""

    exit_code = 2


class LedgerError(DsecError):
    """The ledger refused an operation."""


class TooNew(DsecError):
    """Something here was made by a newer DSec; this one must not touch it."""

    exit_code = 3


class LedgerTooNew(LedgerError, TooNew):
    """The database was written by a newer DSec; this one must not touch it."""

    exit_code = 3


class LedgerOutdated(LedgerError):
    """The database is of an older DSec, whose workers would end if it were migrated."""

    exit_code = 3


class LedgerUnreachable(LedgerError):
    """The ledger's database does not answer."""

    exit_code = 3


class Fenced(LedgerError):
    """A write carried the fencing token of a leader that has been replaced."""


class ReservationConflict(LedgerError):
    """At least one device of a reservation is held by another gang; nothing was reserved."""


class StaleAttempt(LedgerError):
    """A step of an attempt that the ledger has meanwhile undone or replaced; whoever took it must undo it too."""


class CheckpointError(DsecError):
    """A checkpoint cannot be written, read or found."""


class CheckpointMissing(CheckpointError):
    """A run should resume but no commit exists, and a fresh start is not allowed."""


class CheckpointFenced(CheckpointError):
    """A newer attempt of the run owns the checkpoint; this one may not commit any more."""


class StoreUnusable(CheckpointError):
    """The store cannot do what the commit protocol needs (conditional writes, a writable path)."""

    exit_code = 3


class ServerUnreachable(DsecError):
    """No Prefect server answers at the configured address."""

    exit_code = 3


class ClusterError(DsecError):
    """The cluster adapter could not carry out a launch, a notice or a stop."""


class GangTooNew(ClusterError, TooNew):
    """A gang, or the order for one, is of a newer DSec; this one must not touch it."""

    exit_code = 3


class Evicted(BaseException):
    """Raised inside a gang once it has checkpointed and must leave.

    A `BaseException`, so that `except Exception` in user code does not swallow an eviction.
    """
