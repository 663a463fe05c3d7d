"""The plot of growth: a slope on it is an exponent."""

from xml.etree import ElementTree

from benchmarks.loglog import log_log_svg

SVG = "{http://www.w3.org/2000/svg}"


def test_linear_growth_is_the_dashed_line_and_a_flat_figure_is_level() -> None:
    plot = log_log_svg(
        "t & u", "nodes", "ms", {"linear": [(10, 1), (100, 10), (1000, 100)], "flat": [(10, 5), (1000, 5)]}
    )
    drawn = ElementTree.fromstring(plot)
    lines = [
        [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        for line in drawn.iter(f"{SVG}polyline")
    ]
    linear, flat, dashed = lines
    assert (linear[0], linear[-1]) == (dashed[0], dashed[-1])
    assert flat[0][1] == flat[-1][1]
    assert linear[0][1] - linear[1][1] == linear[1][1] - linear[2][1] > 0
