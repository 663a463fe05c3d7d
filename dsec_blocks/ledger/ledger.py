"""The ledger as a whole: one object over one database, each of its parts a concept in a module of its own."""

from dsec_blocks.ledger.admission import Admission
from dsec_blocks.ledger.arrivals import Seen
from dsec_blocks.ledger.backup import Backup
from dsec_blocks.ledger.changes import Changes
from dsec_blocks.ledger.check import Check
from dsec_blocks.ledger.decisions import Decisions
from dsec_blocks.ledger.durations import Durations
from dsec_blocks.ledger.evictions import Evictions
from dsec_blocks.ledger.figures import PoolFigures
from dsec_blocks.ledger.fills import Fills
from dsec_blocks.ledger.inventories import Inventories
from dsec_blocks.ledger.leadership import Leadership
from dsec_blocks.ledger.leaving import Leaving
from dsec_blocks.ledger.node_failures import NodeFailures
from dsec_blocks.ledger.nodes import Nodes, Shadows
from dsec_blocks.ledger.opening import engine_for, migrate
from dsec_blocks.ledger.policies import Policies
from dsec_blocks.ledger.prefetch_asks import PrefetchAsks
from dsec_blocks.ledger.prefetches import Prefetches
from dsec_blocks.ledger.progress import Progress
from dsec_blocks.ledger.queue import Queue
from dsec_blocks.ledger.reservations import Reservations
from dsec_blocks.ledger.retention import Retention
from dsec_blocks.ledger.revision import refuse_newer, schema_version
from dsec_blocks.ledger.schema import HEAD
from dsec_blocks.ledger.starting import Starting
from dsec_blocks.ledger.teams import Teams
from dsec_blocks.ledger.usage import Usage
from dsec_blocks.ledger.wishes import Wishes
from dsec_blocks.model.clock import Clock


class Ledger(
    Teams,
    Leadership,
    Queue,
    Changes,
    Seen,
    Durations,
    Admission,
    Starting,
    Progress,
    Evictions,
    Leaving,
    Reservations,
    Usage,
    Nodes,
    NodeFailures,
    Shadows,
    Decisions,
    Wishes,
    Fills,
    Inventories,
    Prefetches,
    PrefetchAsks,
    Policies,
    Retention,
    Check,
    Backup,
    PoolFigures,
):
    """Durable state of one or more pools. Thread-safe; every method is one transaction, or reads one state.

    What a leader writes takes its `Fence` first. Any method may raise `LedgerUnreachable` or `LedgerError`, and then
    nothing was written (or, if the answer of a commit was lost, all of it: every method may be repeated).
    """

    @classmethod
    def open(cls, url: str, *, clock: Clock, migrate: bool = True) -> "Ledger":
        """The ledger at `sqlite:///path` or `postgresql://…`, brought to this version's schema first.

        With `migrate=False` an older schema is left as it is: see `needs_migration`.

        Raises `LedgerUnreachable` if nothing answers there, `LedgerTooNew` if a newer DSec wrote it.
        """
        ledger = cls(engine_for(url), clock=clock)
        try:
            outdated = ledger.needs_migration()
            if outdated and migrate:
                ledger.migrate()
        except BaseException:
            ledger.close()
            raise
        return ledger

    def version(self) -> str:
        """Schema revision of the database; empty if there is no ledger in it yet."""
        with self.reading() as connection:
            return schema_version(connection) or ""

    def needs_migration(self) -> bool:
        """Whether the schema is older than this DSec's. Raises `LedgerTooNew` if it is newer."""
        version = self.version()
        refuse_newer(version or None, self.url)
        return version != HEAD

    def migrate(self) -> None:
        """Bring the schema to this version, whole or not at all; harmless when it is there already."""
        migrate(self)
