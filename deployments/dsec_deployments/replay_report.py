"""The report of `dsec simulate`: one HTML file that needs nothing else, a section a question."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io

from dsec_blocks.gateways import files
from dsec_blocks.model.units import format_duration
from dsec_deployments.replay_nodes import LAYOUT, TEAM_COLOURS, Unit, node_chart
from dsec_workers.simulation import measures
from dsec_workers.simulation.recording import Recording, Sample

POINTS = 1_500
"""Points that a line over time is thinned to, so that a trace of a year still opens at once."""
_COLOURS = {
    "dsec": "#0b7a4b",
    "easy": "#3b5bdb",
    "fifo": "#868e96",
    "kueue-like": "#e8890c",
    "tiresias-like": "#7048b6",
    "tiresias-like-our-levels": "#b197fc",
}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 1140px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: .2rem } h2 { font-size: 1.15rem; margin: 2rem 0 0 }
p { max-width: 50rem; color: #52606d; margin: .3rem 0 .8rem } table { border-collapse: collapse; width: 100% }
td, th { text-align: left; padding: .16rem .8rem .16rem 0; border-bottom: 1px solid #e4e7eb; font-size: .92rem }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums } .wide { overflow-x: auto }
"""


def write_report(path: Path, recordings: Mapping[str, Recording], *, remarks: Sequence[str] = ()) -> None:
    """Write the page to `path`; the first recording is the pool's own policy."""
    own = next(iter(recordings.values()))
    unit = _unit(own)
    plots = [
        (
            "How much of the cluster was held",
            "Devices held by gangs, as a part of all. A policy is not better for holding more, but devices that stand "
            "idle while others wait are lost.",
            _over_time(recordings, unit, lambda s, r: s.busy / max(1, r.devices), "devices held", percent=True),
        ),
        ("How many waited", "Jobs in the line.", _over_time(recordings, unit, lambda s, r: s.waiting, "waiting jobs")),
        (
            "How long they waited, by team",
            "Of each team's jobs, the part that waited at most so long (wait = completion time − duration). "
            "One policy at a time: choose above the plot.",
            _waits(recordings, lambda outcome: outcome.job.team),
        ),
        (
            "How long they waited, by size",
            "The same by the number of devices.",
            _waits(recordings, lambda outcome: measures.size_of(outcome.job)),
        ),
        (
            "Who gave way",
            "Evictions so far, moves and resizes among them. Each costs its checkpoint and restart, the same under "
            "every policy.",
            _evictions(recordings, unit),
        ),
        (
            "How fragmented the cluster was",
            "Devices that are free on nodes partly busy: a gang that needs whole nodes cannot use them.",
            _over_time(recordings, unit, lambda s, r: s.fragmented / max(1, r.devices), "free in pieces", percent=True),
        ),
        ("What every node did", *node_chart(own, unit)),
    ]
    sections = []
    for number, (title, text, figure) in enumerate(plots):
        html = plotly.io.to_html(figure, full_html=False, include_plotlyjs=number == 0, config={"displaylogo": False})
        sections.append(f"<h2>{escape(title)}</h2><p>{escape(text)}</p>{html}")
    page = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>DSec: {escape(own.trace)} replayed</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(own.trace)}, replayed on {own.devices:,} devices</h1><p>{_summary(own)}</p>"
        + "".join(f"<p>{escape(remark)}.</p>" for remark in remarks)
        + f"<div class='wide'>{_table(recordings)}</div>{''.join(sections)}</body></html>"
    )
    files.write(path, page.encode(), at="simulate.report.write")


def _summary(own: Recording) -> str:
    teams = {outcome.job.team for outcome in own.outcomes.values()}
    ended = max((o.finished_at or 0.0 for o in own.outcomes.values()), default=0.0)
    stopped = " <b>It was interrupted: what follows is the part that was replayed.</b>" if own.interrupted else ""
    return (
        f"{len(own.outcomes):,} jobs of {len(teams)} teams on {len(own.nodes):,} nodes, "
        f"{escape(format_duration(ended))} of virtual time.{stopped}"
    )


def _table(recordings: Mapping[str, Recording]) -> str:
    heads = [
        "policy", "mean wait", "p95 wait", "longest wait", "mean completion", "use", "in pieces", "evictions",
        "of them resizes", "lost device-h", "to resizes", "fairness", "unfinished",
    ]  # fmt: skip
    rows = []
    for name, recording in recordings.items():
        found = measures.figures(recording)
        cells = [
            *(format_duration(found[what]) for what in ("mean_wait", "p95_wait", "max_wait", "mean_jct")),
            f"{found['utilisation']:.1%}", f"{found['fragmented']:.1%}", f"{found['evictions']:,}",
            f"{found['resizes']:,}", f"{found['lost_device_hours']:,.0f}", f"{found['resize_device_hours']:,.0f}",
            f"{found['fairness']:.2f}",
            f"{found['jobs'] - found['finished']:,}",
        ]  # fmt: skip
        rows.append(
            f"<tr><td>{escape(name)}</td>" + "".join(f"<td class='n'>{escape(c)}</td>" for c in cells) + "</tr>"
        )
    head = "".join(f"<th{'' if number == 0 else ' class=n'}>{escape(text)}</th>" for number, text in enumerate(heads))
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


def _unit(recording: Recording) -> Unit:
    """Seconds a unit and its name, so that the time axis has readable numbers."""
    length = recording.samples[-1].at if recording.samples else 0.0
    return (86400.0, "days") if length > 5 * 86400 else (3600.0, "hours") if length > 5 * 3600 else (60.0, "minutes")


def _over_time(
    recordings: Mapping[str, Recording], unit: Unit, value: Any, title: str, *, percent: bool = False
) -> Any:
    figure = go.Figure()
    for name, recording in recordings.items():
        samples = _thinned(recording.samples)
        figure.add_scatter(
            name=name,
            x=[sample.at / unit[0] for sample in samples],
            y=[value(sample, recording) for sample in samples],
            mode="lines",
            line={"shape": "hv", "width": 1.6, "color": _colour(name)},
        )
    figure.update_layout(height=340, **LAYOUT)
    figure.update_xaxes(title=unit[1])
    figure.update_yaxes(title=title, rangemode="tozero", tickformat=".0%" if percent else None)
    return figure


def _thinned(samples: Sequence[Sample]) -> Sequence[Sample]:
    if len(samples) <= POINTS:
        return samples
    chosen = np.unique(np.linspace(0, len(samples) - 1, POINTS).astype(int))
    return [samples[number] for number in chosen]


def _waits(recordings: Mapping[str, Recording], key: Any) -> Any:
    figure = go.Figure()
    owners: list[str] = []
    for name, recording in recordings.items():
        groups: dict[str, list[float]] = {}
        for outcome in recording.outcomes.values():
            if outcome.wait is not None:
                groups.setdefault(key(outcome), []).append(outcome.wait)
        order = sorted(groups, key=_natural)
        for number, group in enumerate(order):
            waits = np.sort(np.array(groups[group]))
            chosen = np.unique(np.linspace(0, len(waits) - 1, min(len(waits), 300)).astype(int))
            figure.add_scatter(
                name=f"{group} ({len(waits):,})",
                x=np.concatenate(([0.5], np.maximum(waits[chosen], 0.5))) / 60.0,
                y=np.concatenate(([0.0], (chosen + 1) / len(waits))),
                mode="lines" if len(waits) > 9 else "lines+markers",
                line={"shape": "hv", "width": 1.8, "color": TEAM_COLOURS[number % len(TEAM_COLOURS)]},
                visible=len(owners) == 0 or owners[0] == name,
            )
            owners.append(name)
    buttons = [
        {"label": name, "method": "update", "args": [{"visible": [owner == name for owner in owners]}]}
        for name in recordings
    ]
    menus = [{"buttons": buttons, "type": "buttons", "direction": "right", "x": 0, "y": 1.22, "xanchor": "left"}]
    figure.update_layout(
        height=430,
        updatemenus=menus if len(buttons) > 1 else [],
        **{**LAYOUT, "margin": {**LAYOUT["margin"], "t": 90}},
    )
    figure.update_xaxes(title="minutes waited (log scale)", type="log")
    figure.update_yaxes(title="part of the jobs", tickformat=".0%", range=[0, 1.02])
    return figure


def _natural(text: str) -> tuple[int, str]:
    order = ["cpu", *(name for name, _, _ in measures.SIZES)]
    return (order.index(text) if text in order else len(order), text)


def _evictions(recordings: Mapping[str, Recording], unit: Unit) -> Any:
    figure = go.Figure()
    for name, recording in recordings.items():
        last = {id: outcome.attempts for id, outcome in recording.outcomes.items()}
        times = sorted(span.end for span in recording.spans if span.attempt < last[span.id])
        total = sum(outcome.evictions for outcome in recording.outcomes.values())
        chosen: Any = np.unique(np.linspace(0, len(times) - 1, min(len(times), POINTS)).astype(int)) if times else []
        end = recording.samples[-1].at if recording.samples else 0.0
        figure.add_scatter(
            name=f"{name} ({total:,})",
            x=[0.0, *(times[number] / unit[0] for number in chosen), end / unit[0]],
            y=[0, *(int(number) + 1 for number in chosen), len(times)],
            mode="lines",
            line={"shape": "hv", "width": 1.8, "color": _colour(name)},
        )
    figure.update_layout(height=320, **LAYOUT)
    figure.update_xaxes(title=unit[1])
    figure.update_yaxes(title="evictions so far", rangemode="tozero")
    return figure


def _colour(name: str) -> str:
    return _COLOURS.get(name, "#1098ad")
