"""What a run's report says once the run has ended."""

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
