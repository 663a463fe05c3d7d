"""A log-log plot as SVG: growth is a slope, and linear growth a line beside it. Needs no library."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 640, 420, 64, 48, 36, 170
FONT = 'font-family="sans-serif" font-size="12"'
COLOURS = ("#1f6feb", "#d1495b", "#2f9e44", "#8a5cd6", "#e08e0b")
Points = Sequence[tuple[float, float]]


def log_log_svg(title: str, x_label: str, y_label: str, series: Mapping[str, Points]) -> str:
    """One line with marks a series; all values are above 0. A dashed line shows linear growth from the first point."""
    points = [point for each in series.values() for point in each]
    low_x, high_x = floor(log10(min(x for x, _ in points))), ceil(log10(max(x for x, _ in points)))
    low_y, high_y = floor(log10(min(y for _, y in points))), ceil(log10(max(y for _, y in points)))

    def at(x: float, y: float) -> tuple[float, float]:
        right, up = (log10(x) - low_x) / max(1, high_x - low_x), (log10(y) - low_y) / max(1, high_y - low_y)
        return LEFT + right * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - BOTTOM - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
        f'<text x="{LEFT}" y="{HEIGHT - 10}">{escape(x_label)}</text>',
        f'<text transform="translate(14 {HEIGHT - BOTTOM}) rotate(-90)">{escape(y_label)}</text>',
    ]
    for power in range(low_x, high_x + 1):
        x, y = at(10.0**power, 10.0**low_y)
        parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x:.1f}" y2="{TOP}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 16:.1f}" text-anchor="middle">{_number(power)}</text>')
    for power in range(low_y, high_y + 1):
        x, y = at(10.0**low_x, 10.0**power)
        parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{_number(power)}</text>')
    for index, (name, each) in enumerate(series.items()):
        colour, ordered = COLOURS[index % len(COLOURS)], sorted(each)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*point) for point in ordered))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in (at(*p) for p in ordered)]
        parts.append(
            f'<text x="{WIDTH - RIGHT + 12}" y="{TOP + 18 * index + 12}" fill="{colour}">{escape(name)}</text>'
        )
    (first_x, first_y), last_x = min(points), max(x for x, _ in points)
    last_x = min(last_x, first_x * 10.0**high_y / first_y)
    ends = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(first_x, first_y), at(last_x, first_y * last_x / first_x)))
    parts.append(f'<polyline points="{ends}" fill="none" stroke="#999" stroke-dasharray="4 4"/>')
    last = TOP + 18 * len(series) + 12
    parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{last}" fill="#777">linear growth</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _number(power: int) -> str:
    return f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"
