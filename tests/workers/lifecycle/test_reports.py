"""What a run's report says once the run has ended."""

from dsec_blocks.ledger import Prefetch, PrefetchState
from dsec_blocks.model.gangs import CARDS, GangState
from dsec_blocks.model.requests import GangRequest
from dsec_workers.clusters.cache_figures import CacheFigures
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


def test_the_report_names_the_cards_where_only_the_nodes_knew_which_they_would_be() -> None:
    launch = {"adapter": "kubernetes", CARDS: {"n2": ["GPU-c"], "n1": ["GPU-b", "GPU-a"]}}
    report = run_report(gang(GangState.ENDED, outcome={"at": LAUNCHED + 1}, launch=launch), now=LAUNCHED)
    assert "| node | cards of the last attempt |\n|---|---|\n| n1 | GPU-b, GPU-a |\n| n2 | GPU-c |" in report
    assert "cards" not in run_report(gang(GangState.ENDED, outcome={"at": LAUNCHED + 1}), now=LAUNCHED)


def test_the_report_says_how_much_of_the_data_was_there_and_how_long_the_start_stood_still() -> None:
    got = CacheFigures(total_bytes=4 << 30, cluster_bytes=1 << 30, origin_bytes=1 << 29, stall_seconds=7.5,
                       fetch_seconds=6.0, verify_seconds=0.5)  # fmt: skip
    ended = gang(GangState.ENDED, admitted_at=LAUNCHED - 8, outcome={"at": LAUNCHED + 1}, metrics=got.to_metrics(1))
    report = run_report(ended, now=LAUNCHED + 500)
    assert "| byte hit ratio of the nodes' caches | 62.5% of 4 GiB |" in report
    assert "| byte hit ratio with the cluster's store | 87.5% of 4 GiB |" in report
    assert "| last start: stall | 7.50 s; the longest that a process waited for 4 GiB |" in report
    assert "byte hit ratio" not in run_report(gang(GangState.ENDED, outcome={"at": LAUNCHED + 1}), now=LAUNCHED)


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
