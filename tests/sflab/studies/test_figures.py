"""Figures that can be read."""

from __future__ import annotations

from itertools import combinations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sflab.studies import figures
from sflab.studies.comparisons import label


def test_a_series_that_is_no_method_keeps_its_name() -> None:
    assert label("rank 4") == "rank 4"
    assert label("dsgd-lora") == "DSGD-LoRA"


def test_labels_of_points_that_are_close_do_not_cover_each_other() -> None:
    figure = Figure(figsize=(figures.WIDTH, 3.6))
    canvas = FigureCanvasAgg(figure)
    panel = figure.subplots()
    points = {name: (10.0 ** (3 + 0.15 * number), 0.5) for number, name in enumerate(figures.ORDER[:7])}
    panel.set_xscale("log")
    for x, y in points.values():
        panel.plot([x], [y])
    panel.margins(x=0.18, y=0.12)
    figures._label(panel, points, figures.looks(points))
    canvas.draw()
    boxes = [text.get_window_extent() for text in panel.texts]
    assert len(boxes) == 7
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
