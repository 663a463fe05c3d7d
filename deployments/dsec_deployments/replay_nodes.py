"""What every node did in a replay, as a chart; and the looks that all of the report's charts share."""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from dsec_blocks.model.units import format_duration
from dsec_workers.simulation.recording import Recording, Span

BARS = 6_000
"""Bars up to which the node chart shows every stay; above it shows each node's use as colour."""
TEAM_COLOURS = (
    "#0b7a4b", "#3b5bdb", "#d9480f", "#7048b6", "#1098ad", "#e8890c", "#a61e4d", "#5c940d", "#495057", "#c2255c",
    "#2b8a3e", "#1864ab",
)  # fmt: skip
LAYOUT: dict[str, Any] = {
    "template": "plotly_white",
    "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#1f2933"},
    "margin": {"l": 80, "r": 24, "t": 24, "b": 56},
    "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom"},
    "hovermode": "closest",
}

Unit = tuple[float, str]
"""Seconds, and what so many are called."""


def node_chart(own: Recording, unit: Unit) -> tuple[str, Any]:
    """A bar a stay (a row a node, its devices side by side); where that is too much, each node's use as colour."""
    bars = [(span, node, low, high) for span in own.spans for node, mask in span.seats for low, high in _runs(mask)]
    height = max(260, min(1400, 90 + 26 * len(own.nodes)))
    if len(bars) > BARS:
        return (
            "A row a node; the darker, the more of its devices were held.",
            _heat(own, unit, height),
        )
    figure = go.Figure()
    teams = sorted({outcome.job.team for outcome in own.outcomes.values()})
    width = max((high for _, _, _, high in bars), default=1)
    for number, team in enumerate(teams):
        mine = [bar for bar in bars if own.outcomes[bar[0].id].job.team == team]
        if not mine:
            continue
        figure.add_bar(
            name=team,
            orientation="h",
            base=[span.start / unit[0] for span, *_ in mine],
            x=[max(span.end - span.start, 1e-9) / unit[0] for span, *_ in mine],
            y=[node + ((low + high) / 2 / width - 0.5) * 0.86 for _, node, low, high in mine],
            width=[(high - low) / width * 0.84 for _, _, low, high in mine],
            marker={"color": TEAM_COLOURS[number % len(TEAM_COLOURS)], "line": {"width": 0.6, "color": "white"}},
            customdata=[[escape(span.id), span.attempt, format_duration(span.end - span.start)] for span, *_ in mine],
            hovertemplate="%{customdata[0]}, attempt %{customdata[1]}, %{customdata[2]}<extra>"
            + escape(team)
            + "</extra>",
        )
    figure.update_layout(barmode="overlay", height=height, **LAYOUT)
    figure.update_xaxes(title=unit[1])
    figure.update_yaxes(
        tickvals=list(range(len(own.nodes))),
        ticktext=list(own.nodes),
        range=[len(own.nodes) - 0.4, -0.6],
        showgrid=False,
    )
    return "A row a node, its devices side by side, a colour a team. Point at a bar to see whose it is.", figure


def _heat(own: Recording, unit: Unit, height: int) -> Any:
    columns = 240
    end = max((span.end for span in own.spans), default=1.0)
    edges = np.linspace(0.0, end, columns + 1)
    held = np.zeros((len(own.nodes), columns))
    for span in own.spans:
        first, last = np.searchsorted(edges, [span.start, span.end], side="right") - 1
        for column in range(max(0, int(first)), min(columns, int(last) + 1)):
            overlap = min(span.end, edges[column + 1]) - max(span.start, edges[column])
            for node, mask in span.seats:
                held[node, column] += mask.bit_count() * max(0.0, overlap)
    widest = _widest(own.spans, len(own.nodes))
    use = held / (edges[1] - edges[0]) / widest[:, None]
    figure = go.Figure(
        go.Heatmap(
            z=np.round(use, 3),
            x=np.round((edges[:-1] + edges[1:]) / 2 / unit[0], 3),
            y=list(own.nodes),
            zmin=0,
            zmax=1,
            colorscale=[[0, "#f1f3f5"], [1, "#0b7a4b"]],
            colorbar={"title": "held", "tickformat": ".0%"},
        )
    )
    figure.update_layout(height=height, **LAYOUT)
    figure.update_xaxes(title=unit[1])
    figure.update_yaxes(autorange="reversed")
    return figure


def _widest(spans: Sequence[Span], nodes: int) -> Any:
    masks = [1] * nodes
    for span in spans:
        for node, mask in span.seats:
            masks[node] |= mask
    return np.array([mask.bit_length() for mask in masks], float)


def _runs(mask: int) -> list[tuple[int, int]]:
    """The mask's stretches of neighbouring devices."""
    found, bit = [], 0
    while mask >> bit:
        if mask >> bit & 1:
            low = bit
            while mask >> bit & 1:
                bit += 1
            found.append((low, bit))
        else:
            bit += 1
    return found
