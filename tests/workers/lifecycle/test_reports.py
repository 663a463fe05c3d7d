"""What a run's report says once the run has ended."""

from dsec_blocks.ledger import Prefetch, PrefetchState
from dsec_blocks.model.gangs import GangState
from dsec_blocks.model.requests import GangRequest
from dsec_workers.lifecycle.reports import run_report
from tests.workers.lifecycle.records import LAUNCHED, gang


def test_the_report_of_an_ended_run_still_counts_the_devices_that_it_held() -> None:
    ended = gang(
        GangState.ENDED,
        request=GangRequest(nodes=2, devices_per_node=4),
        placement=None,
        outcome={"kind": "exited", "at": LAUNCHED + 10},
        evictions=1,
        last_step=200,
    )
    report = run_report(ended, now=LAUNCHED + 500)
    assert "| device-seconds of the last attempt | 80 |" in report
    assert "| evictions | 1 |" in report and "| last committed step | 200 |" in report


def test_the_report_splits_the_last_start_into_its_stages() -> None:
    order = Prefetch(
        run_id="run", attempt=1, node="n1", pool="pool", addresses=("s3://b/x",), ordered_at=LAUNCHED - 8,
        state=PrefetchState.DONE, began_at=LAUNCHED - 7, ended_at=LAUNCHED - 2, bytes_done=1 << 30, bytes_total=1 << 30,
    )  # fmt: skip
    ended = gang(GangState.ENDED, admitted_at=LAUNCHED - 8, eligible_at=LAUNCHED - 10, outcome={"at": LAUNCHED + 1})
    report = run_report(ended, [order], now=LAUNCHED + 500)
    assert "| last start: placement | 2.00 s; due to reserved |" in report
    assert "| last start: fetch | 5.00 s; 1 GiB on n1 in 5.00 s; done before user code |" in report
    assert "| last start: launch | 8.00 s; reserved to user code |" in report
