"""The demo's report: one HTML file that needs nothing else, with the timeline, the waits and the loss."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.io
from plotly.colors import qualitative

from dsec_blocks.gateways import files
from dsec_deployments.demo.claims import Claim
from dsec_deployments.demo.recording import Recording

_LAYOUT: dict[str, Any] = {
    "template": "plotly_white",
    "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1f2933"},
    "margin": {"l": 120, "r": 24, "t": 24, "b": 48},
    "legend": {"orientation": "h", "y": -0.18},
}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 1100px; margin: 2.5rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: .2rem } h2 { font-size: 1.15rem; margin-top: 2.5rem }
p { max-width: 46rem; color: #52606d } table { border-collapse: collapse; width: 100% }
td, th { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid #e4e7eb }
td.n { text-align: right; font-variant-numeric: tabular-nums } .yes { color: #0b7a4b } .no { color: #c81e1e }
"""


def write_report(path: Path, recording: Recording, claims: Sequence[Claim]) -> None:
    """Write the page to `path`."""
    plots = [
        (
            "Who held which GPU",
            "One row a GPU, one colour a gang. A gang's devices begin together; what is evicted leaves room to the "
            "gang that needed it and comes back later in the same colour.",
            timeline(recording),
        ),
        ("Who waited, and why", "Point at a bar to see the reason that the run's page showed.", waits(recording)),
        (
            "The loss across the eviction",
            "The evicted run continues the curve of the uninterrupted one; other seeds, or ranks that do not exchange "
            "gradients, do not.",
            loss(recording),
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
        f"<p>{held} of {len(claims)} claims held.</p>{_table(claims)}{''.join(sections)}</body></html>"
    )
    files.write(path, page.encode(), at="demo.report.write")


def timeline(recording: Recording) -> go.Figure:
    """One bar for every stretch of time that a gang held a device."""
    figure = go.Figure()
    colours = _colours([span.run for span in recording.spans])
    for run, colour in colours.items():
        spans = [span for span in recording.spans if span.run == run]
        figure.add_bar(
            name=run,
            y=[span.device for span in spans],
            base=[span.start - recording.began for span in spans],
            x=[max(span.end - span.start, 0.05) for span in spans],
            orientation="h",
            marker={"color": colour, "line": {"width": 0}},
            customdata=[span.attempt for span in spans],
            hovertemplate=f"{escape(run)}, attempt %{{customdata}}<br>%{{base:.1f}} s, for %{{x:.1f}} s<extra></extra>",
            showlegend=not run.startswith(("small-", "vision-", "speech-")),
        )
    figure.update_layout(barmode="overlay", height=120 + 26 * max(len(recording.devices), 1), **_LAYOUT)
    figure.update_yaxes(categoryorder="array", categoryarray=list(reversed(recording.devices)), title="GPU")
    figure.update_xaxes(title="seconds since the start", rangemode="tozero")
    _mark(figure, recording)
    return figure


def waits(recording: Recording) -> go.Figure:
    """One bar for every stay in the line."""
    figure = go.Figure(
        go.Bar(
            y=[wait.run for wait in recording.waits],
            base=[wait.start - recording.began for wait in recording.waits],
            x=[max(wait.end - wait.start, 0.05) for wait in recording.waits],
            orientation="h",
            marker={"color": "#9aa5b1"},
            customdata=[escape(wait.reason) for wait in recording.waits],
            hovertemplate="%{y}: %{x:.1f} s<br>%{customdata}<extra></extra>",
        )
    )
    rows = len({wait.run for wait in recording.waits})
    figure.update_layout(height=120 + 18 * max(rows, 1), **_LAYOUT)
    figure.update_yaxes(autorange="reversed")
    figure.update_xaxes(title="seconds since the start", rangemode="tozero")
    return figure


def loss(recording: Recording) -> go.Figure:
    """One line a training run."""
    figure = go.Figure()
    for name, curve in recording.losses.items():
        steps = sorted(curve)
        dashed = name != "evicted and resumed"
        figure.add_scatter(
            name=name,
            x=steps,
            y=[curve[step] for step in steps],
            mode="lines",
            line={"width": 2 if dashed else 4, "dash": "dot" if dashed else "solid"},
            opacity=1.0 if dashed else 0.55,
        )
    figure.update_layout(height=420, **_LAYOUT)
    figure.update_xaxes(title="step")
    figure.update_yaxes(title="loss", type="log")
    return figure


def _mark(figure: go.Figure, recording: Recording) -> None:
    for at, text in recording.marks:
        figure.add_vline(
            x=at - recording.began,
            line={"width": 1, "dash": "dot", "color": "#52606d"},
            annotation={"text": escape(text), "textangle": -90, "font": {"size": 11}, "yanchor": "top"},
        )


def _colours(runs: Sequence[str]) -> dict[str, str]:
    palette = qualitative.Safe + qualitative.Pastel
    return {run: palette[number % len(palette)] for number, run in enumerate(dict.fromkeys(runs))}


def _table(claims: Sequence[Claim]) -> str:
    rows = [
        f"<tr><td class='{'yes' if claim.held else 'no'}'>{'✓' if claim.held else '✗'}</td>"
        f"<td>{escape(claim.name)}</td><td class='n'>{'' if claim.figure is None else f'{claim.figure:.6g}'}</td>"
        f"<td>{escape(claim.unit)}</td></tr>"
        for claim in claims
    ]
    return f"<table><tr><th></th><th>claim</th><th>figure</th><th></th></tr>{''.join(rows)}</table>"
