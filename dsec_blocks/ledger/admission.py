"""Admission: a gang gets all of its devices in one transaction, or none, and gives them back whole if a start fails.

waiting → reserved (→ launching → running: `starting`), and back to waiting from the two in the middle. `attempt` is
raised at each admission and named by every later step, so a step of an attempt that was undone meanwhile is refused.
"""

from collections.abc import Mapping, Sequence

import sqlalchemy as sa

from dsec_blocks.ledger import batch, prefetches, reservations, resuming, schema
from dsec_blocks.ledger.batch import AdmissionRequest
from dsec_blocks.ledger.evictions import victims_of
from dsec_blocks.ledger.reservations import Holder
from dsec_blocks.ledger.resuming import Resumption
from dsec_blocks.ledger.transaction import Fence, Transactions
from dsec_blocks.model.errors import ReservationConflict
from dsec_blocks.model.gangs import Gang, GangState, Placement

_gangs = schema.gangs


class Admission(Transactions):
    """From waiting to reserved, and back."""

    def admit(
        self,
        fence: Fence,
        run_id: str,
        placement: Placement,
        *,
        victims: Sequence[str] = (),
        resumptions: Sequence[Resumption] = (),
        expires_at: float,
        why: str = "",
        costs: Mapping[str, float] | None = None,
        lifted: bool = False,
        conditional_until: float | None = None,
    ) -> Gang:
        """Reserve the whole `placement` for a waiting gang and mark its running `victims` as evicting.

        Each node of it is told in the same transaction to fetch the gang's inputs; see `AdmissionRequest` for the rest.
        Returns the gang with its new attempt.

        Raises `ReservationConflict`; nothing has changed then, for the gang and for the victims.
        """
        request = AdmissionRequest(
            run_id=run_id,
            placement=placement,
            expires_at=expires_at,
            victims=victims,
            resumptions=resumptions,
            why=why,
            costs=costs or {},
            lifted=lifted,
            conditional_until=conditional_until,
        )
        answer = self.admit_all(fence, [request])[0]
        if isinstance(answer, ReservationConflict):
            raise answer
        return answer

    def admit_all(self, fence: Fence, requests: Sequence[AdmissionRequest]) -> list[Gang | ReservationConflict]:
        """Admit each of them as `admit` does, in their order and in one transaction: whoever cannot be admitted is
        answered with its conflict, and takes nothing from the others.
        """
        if not requests:
            return []
        with self.transaction(at="ledger.admit", fence=fence) as connection:
            return batch.admit(connection, requests, now=self._clock.now())

    def undo_admission(
        self, fence: Fence, run_id: str, attempt: int, *, why: str, not_before: float | None = None
    ) -> list[str]:
        """A start that failed or expired: back to waiting, all its devices and promises given up.

        Returns the gangs that are being evicted for it, whose notices the caller withdraws where it still can.
        Does nothing for an attempt that is neither reserved nor launching. Of a gang that has not left yet, the next
        attempt's reservation where it would have gone on is undone in the same way.
        """
        now = self._clock.now()
        values = {
            "state": GangState.WAITING,
            "placement": None,
            "expires_at": None,
            "launched_at": None,
            "not_before": not_before,
            "outcome": {"kind": "failed-start", "message": why},
        }
        with self.transaction(at="ledger.undo_admission", fence=fence) as connection:
            starting = _gangs.c.state.in_([GangState.RESERVED, GangState.LAUNCHING])
            undone = connection.execute(
                sa.update(_gangs)
                .where(_gangs.c.run_id == run_id, _gangs.c.attempt == attempt, starting)
                .values(**values)
                .returning(_gangs.c.pool, _gangs.c.team)
            ).one_or_none()
            if undone is None:
                if resuming.on_their_way(connection, [run_id]).get(run_id) == attempt - 1:
                    resuming.give_up(connection, [run_id], now=now)
                return []
            mine = Holder(run_id, attempt, undone.pool, undone.team)
            reservations.release(connection, [mine], now=now, written=[run_id])
            prefetches.withdraw(connection, [(run_id, attempt)], now=now)
            return victims_of(connection, run_id)
