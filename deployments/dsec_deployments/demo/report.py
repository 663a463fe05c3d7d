"""The demo's report: one HTML file that needs nothing else, with the timeline, the waits and the loss."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io

from dsec_blocks.gateways import files
from dsec_deployments.demo.claims import Claim
from dsec_deployments.demo.recording import Recording

_LAYOUT: dict[str, Any] = {
    "template": "plotly_white",
    "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1f2933"},
    "margin": {"l": 190, "r": 24, "t": 24, "b": 48},
    "bargap": 0.12,
}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 1140px; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: .2rem } h2 { font-size: 1.15rem; margin: 2rem 0 0 }
p { max-width: 50rem; color: #52606d; margin: .3rem 0 .8rem } table { border-collapse: collapse; width: 100% }
td, th { text-align: left; padding: .16rem .8rem .16rem 0; border-bottom: 1px solid #e4e7eb; font-size: .92rem }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
td small { color: #7b8794 } td:last-child { white-space: nowrap } .yes { color: #0b7a4b } .no { color: #c81e1e }
"""
_CAST = {
    "finetune": "#0b7a4b",
    "urgent": "#d9480f",
    "urgent-two-nodes": "#e8890c",
    "stale": "#3b5bdb",
    "steady": "#7048b6",
    "frugal": "#1098ad",
}
"""The colours of those the story is about: what gives way is cool, what cannot wait is warm."""
_EXTRAS = {"reference": "#adb5bd", "small": "#ced4da", "other": "#868e96"}
"""And of everybody else."""
_LABEL_PIXELS = 6.6
_PLOT_PIXELS = 900


def write_report(path: Path, recording: Recording, claims: Sequence[Claim]) -> None:
    """Write the page to `path`."""
    plots = [
        (
            "Who held which GPU",
            "One row a GPU, one colour a gang. A gang gets all its GPUs at the same moment. What is evicted makes room "
            "for the gang that needs it, and comes back later in the same colour.",
            timeline(recording),
        ),
        (
            "The loss across the eviction",
            "The evicted run goes on exactly where it stopped: its curve lies on that of the uninterrupted run. "
            "Another seed, or ranks that do not exchange gradients, would show.",
            loss(recording),
        ),
        (
            "Who waited, and why",
            "One bar for each stay in the line, with the last reason that it was given. Point at a bar to read it all.",
            waits(recording),
        ),
    ]
    sections = []
    for number, (title, text, figure) in enumerate(plots):
        html = plotly.io.to_html(figure, full_html=False, include_plotlyjs=number == 0, config={"displaylogo": False})
        sections.append(f"<h2>{escape(title)}</h2><p>{escape(text)}</p>{html}")
    held = sum(claim.held for claim in claims)
    page = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>DSec demo</title>"
        f"<style>{_STYLE}</style></head><body><h1>DSec: a pool of GPUs at work</h1>"
        f"<p>{_summary(recording)} <b>{held} of {len(claims)} claims held.</b></p>"
        f"{_table(claims)}{''.join(sections)}</body></html>"
    )
    files.write(path, page.encode(), at="demo.report.write")


def timeline(recording: Recording) -> go.Figure:
    """One bar for every stretch of time that a gang held a device."""
    figure = go.Figure()
    shown: set[str] = set()
    for run in dict.fromkeys(span.run for span in recording.spans):
        spans = [span for span in recording.spans if span.run == run]
        group = _group(run)
        named: set[int] = set()
        texts = []
        for span in spans:
            wide = (span.end - span.start) * _pixels_a_second(recording) > _LABEL_PIXELS * len(run) + 8
            texts.append(escape(run) if wide and span.attempt not in named and group != "small" else "")
            named.add(span.attempt)
        figure.add_bar(
            name={"small": "small gangs", "reference": "reference runs"}.get(group, run),
            legendgroup=group,
            showlegend=group not in shown,
            y=[recording.labels.get(span.device, span.device) for span in spans],
            base=[span.start - recording.began for span in spans],
            x=[max(span.end - span.start, 0.05) for span in spans],
            orientation="h",
            text=texts,
            textposition="inside",
            insidetextanchor="start",
            textangle=0,
            insidetextfont={"color": "white" if group in _CAST else "#1f2933", "size": 12},
            marker={"color": _colour(run), "line": {"width": 1, "color": "white"}},
            customdata=[span.attempt for span in spans],
            hovertemplate=f"{escape(run)}, attempt %{{customdata}}<br>%{{base:.1f}} s, for %{{x:.1f}} s<extra></extra>",
        )
        shown.add(group)
    rows = [recording.labels.get(device, device) for device in recording.devices]
    levels = _mark(figure, recording)
    margin = {**_LAYOUT["margin"], "t": 24 + 18 * levels, "b": 100}
    height = margin["t"] + margin["b"] + 24 * max(len(rows), 1)
    legend = {"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom"}
    figure.update_layout(barmode="overlay", height=height, **{**_LAYOUT, "margin": margin}, legend=legend)
    figure.update_yaxes(categoryorder="array", categoryarray=list(reversed(rows)), showgrid=False)
    figure.update_xaxes(title="seconds since the demo began", range=[0, _length(recording) * 1.01])
    return figure


def waits(recording: Recording) -> go.Figure:
    """One bar for every stay in the line."""
    lasting = [wait for wait in recording.waits if wait.end - wait.start >= 0.5]
    figure = go.Figure(
        go.Bar(
            y=[wait.run for wait in lasting],
            base=[wait.start - recording.began for wait in lasting],
            x=[wait.end - wait.start for wait in lasting],
            orientation="h",
            text=[_shortened(wait.reason, (wait.end - wait.start) * _pixels_a_second(recording)) for wait in lasting],
            textposition="inside",
            insidetextanchor="start",
            insidetextfont={"color": "#1f2933", "size": 11},
            marker={"color": ["#b2dfc7" if wait.run == "finetune" else "#dde2e7" for wait in lasting]},
            customdata=[escape(wait.reason) for wait in lasting],
            hovertemplate="%{y}: %{x:.1f} s<br>%{customdata}<extra></extra>",
        )
    )
    rows = len({wait.run for wait in lasting})
    figure.update_layout(height=90 + 21 * max(rows, 1), **_LAYOUT)
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(title="seconds since the demo began", range=[0, _length(recording) * 1.01])
    return figure


def loss(recording: Recording) -> go.Figure:
    """One line a training run."""
    looks = {
        "evicted and resumed": {"color": _CAST["finetune"], "width": 7},
        "uninterrupted": {"color": "#1f2933", "width": 2, "dash": "dot"},
        "another seed": {"color": "#d9480f", "width": 1.5},
        "no gradient exchange": {"color": "#7048b6", "width": 1.5},
    }
    figure = go.Figure()
    for name in sorted(recording.losses, key=lambda name: list(looks).index(name) if name in looks else len(looks)):
        curve = recording.losses[name]
        steps = sorted(curve)
        figure.add_scatter(
            name=name,
            x=steps,
            y=[curve[step] for step in steps],
            mode="lines",
            line=looks.get(name, {"width": 1.5}),
            opacity=0.45 if name == "evicted and resumed" else 1.0,
        )
    if recording.resumes_at is not None:
        figure.add_vline(
            x=recording.resumes_at,
            line={"width": 1, "dash": "dash", "color": "#52606d"},
            annotation={"text": f"evicted; resumes from step {recording.resumes_at}", "font": {"size": 12}},
            annotation_position="top left",
        )
    legend = {"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom"}
    figure.update_layout(height=400, **{**_LAYOUT, "margin": {"l": 70, "r": 24, "t": 24, "b": 90}}, legend=legend)
    last = max((step for curve in recording.losses.values() for step in curve), default=1)
    figure.update_xaxes(title="step", range=[0, last + 1])
    figure.update_yaxes(title="training loss (log scale)", type="log", dtick="D2", tickformat=".2~g")
    return figure


def _summary(recording: Recording) -> str:
    gangs = {span.run for span in recording.spans}
    again = {(span.run, span.attempt) for span in recording.spans if span.attempt > 1}
    nodes = {label.split(" · ")[0] for label in recording.labels.values()}
    return (
        f"{len(recording.devices)} declared GPUs on {len(nodes)} nodes; {len(gangs)} gangs ran, "
        f"{len(again)} of them again after an eviction."
    )


def _mark(figure: go.Figure, recording: Recording) -> int:
    """A line for each moment, its text above the plot on the lowest level that is free there; how many levels."""
    taken: list[float] = []
    for at, text in recording.marks:
        x = at - recording.began
        width = (_LABEL_PIXELS * len(text) + 14) / _pixels_a_second(recording)
        to_the_left = x + width > _length(recording)
        begin = x - width if to_the_left else x
        level = next((i for i, until in enumerate(taken) if until <= begin), len(taken))
        taken[level : level + 1] = [begin + width]
        figure.add_vline(x=x, line={"width": 1, "dash": "dot", "color": "#1f2933"})
        figure.add_annotation(
            x=x, y=1, yref="paper", yanchor="bottom", yshift=18 * level, showarrow=False, font={"size": 12},
            xanchor="right" if to_the_left else "left", xshift=5 if to_the_left else -5,
            text=f"{escape(text)} ▾" if to_the_left else f"▾ {escape(text)}",
        )  # fmt: skip
    return len(taken)


def _length(recording: Recording) -> float:
    ends = [span.end for span in recording.spans] + [wait.end for wait in recording.waits]
    return max([1.0, *(end - recording.began for end in ends)])


def _pixels_a_second(recording: Recording) -> float:
    return _PLOT_PIXELS / _length(recording)


def _shortened(text: str, pixels: float) -> str:
    """As much of `text` as fits; nothing where that would say nothing."""
    room = int(pixels / 5.6) - 1
    if len(text) > room:
        text = text[: room - 1].rstrip(" ;,") + "…" if room >= 12 else ""
    return escape(text)


def _group(run: str) -> str:
    """Gangs that share a colour and a line of the legend."""
    if run in _CAST:
        return run
    if run.startswith("reference-"):
        return "reference"
    return "small" if run.startswith(("small-", "vision-", "speech-")) else run


def _colour(run: str) -> str:
    group = _group(run)
    return _CAST.get(group) or _EXTRAS.get(group, _EXTRAS["other"])


def _table(claims: Sequence[Claim]) -> str:
    rows = [
        f"<tr><td class='{'yes' if claim.held else 'no'}'>{'✓' if claim.held else '✗'}</td>"
        f"<td>{escape(claim.name)}{_remark(claim)}</td>"
        f"<td class='n'>{'' if claim.figure is None else f'{claim.figure:.6g}'}</td><td>{escape(claim.unit)}</td></tr>"
        for claim in claims
    ]
    return f"<table><tr><th></th><th>claim</th><th class='n'>figure</th><th></th></tr>{''.join(rows)}</table>"


def _remark(claim: Claim) -> str:
    return f" <small>{escape(claim.remark)}</small>" if claim.remark else ""
