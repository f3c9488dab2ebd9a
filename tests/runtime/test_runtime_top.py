"""What `sfnode top` draws, of real nodes: it fits any terminal and shows what the node says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from runtime_helpers import Swarm, eventually, manifest

from sfnode.dashboard import figures
from sfnode.dashboard.frame import absent, ascii_only, frame
from sfnode.dashboard.seen import Seen, agreement, look
from sfnode.runtime.viewed import SwarmNode


async def seen_of(swarm: Swarm) -> Seen:
    """A trainer's view of a run of three that is complete."""
    await swarm.first(role="relay")
    b = await swarm.join("b")
    await swarm.join("c")
    await b.until(lambda: b.machine.complete)
    await eventually(lambda: sum(bool(node.agrees) for node in b.node.views.swarm().nodes) == 3)
    await b.client.evaluate(base=True)
    await b.client.evaluate(limit=9)
    return await look(b.client)


async def test_a_frame_tells_what_the_node_says_and_fits_any_terminal(swarm_of: Callable[..., Swarm]) -> None:
    seen = await seen_of(swarm_of(manifest(update_budget=120)))
    it_tells_what_the_node_says(seen)
    it_counts_the_neighbours_for_whom_there_is_no_line(seen)
    for width, height in ((40, 8), (60, 16), (80, 24), (132, 43), (250, 100)):
        it_fits(seen, width, height)


def it_tells_what_the_node_says(seen: Seen) -> None:
    lines = [line.plain for line in frame(seen, 80, 24)]
    text = "\n".join(lines)
    assert len(lines) == 24
    known = seen.status.known
    assert f"{known:,} of 120 updates" in text
    assert "done" in text
    assert seen.status.digest[:12] in text
    assert "2 of 2 neighbours agree" in text
    assert f"accuracy  {known:.3f}" in text
    assert "base 0.000" in text
    assert "loss  1.000" in text
    assert sum("same digest" in line for line in lines) == 2
    assert "q quit" in lines[-1]


def it_fits(seen: Seen, width: int, height: int) -> None:
    for lines in (frame(seen, width, height, "a note"), absent("/home/a", "no node answers", width, height)):
        assert len(lines) <= height
        assert max(line.cell_len for line in lines) <= width
    assert all(line.plain.isascii() for line in ascii_only(frame(seen, width, height)))


def it_counts_the_neighbours_for_whom_there_is_no_line(seen: Seen) -> None:
    neighbour = seen.swarm.nodes[1]
    nodes = [seen.swarm.nodes[0], *(neighbour.model_copy(update={"peer": f"p{n}"}) for n in range(30))]
    many = seen._replace(swarm=seen.swarm.model_copy(update={"nodes": nodes}))
    lines = [line.plain for line in frame(many, 80, 24)]
    assert len(lines) == 24
    shown = sum("same digest" in line for line in lines)
    assert f"and {30 - shown} more" in lines
    assert shown >= 3


def test_agreement_is_told_in_words_and_alarms_only_when_it_lasts() -> None:
    def node(known: int, agrees: bool, differs_for: float | None) -> SwarmNode:
        return SwarmNode(
            peer="a",
            kind="neighbour",
            role="trainer",
            known=known,
            lag=0,
            agrees=agrees,
            differs_for=differs_for,
        )

    assert agreement(node(7, True, None), 9) == "same digest"
    assert agreement(node(7, False, 99.0), 9) == "2 behind"
    assert agreement(node(9, False, 99.0), 7) == "2 ahead"
    assert agreement(node(7, False, 3.0), 7) == "under way"
    assert agreement(node(7, False, 99.0), 7) == "digest differs"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (figures.size(999), "999 B"),
        (figures.size(1234), "1.2 kB"),
        (figures.size(999_600), "1.0 MB"),
        (figures.size(5e15), "5000 TB"),
        (figures.span(41), "0:41"),
        (figures.span(3 * 3600 + 300), "3 h 05"),
        (figures.span(100 * 3600), "4 d 4 h"),
        (figures.span(None), "?"),
        (figures.delay(0.0004), "0.4 ms"),
        (figures.delay(0.012), "12 ms"),
        (figures.delay(1.26), "1.3 s"),
        (figures.rate(None), "?"),
        (figures.rate(1234.5), "1,234"),
        (figures.bar(0.5, 4), "██░░"),
        (figures.spark([0, 1, 2], 9), "▁▅█"),
        (figures.short("a" * 20, 4), "…aaa"),
    ],
)
def test_figures_read_well(given: str, expected: str) -> None:
    assert given == expected


def test_a_curve_in_braille_rises_where_its_values_do_and_has_gaps_where_there_are_none() -> None:
    top, bottom = figures.braille([0.0, 1.0], 2, 2)
    assert bottom[0] != figures.BLANK
    assert top[-1] != figures.BLANK
    assert top[0] == figures.BLANK
    (line,) = figures.braille([1.0, None, None, 1.0], 4, 1)
    assert line[1:3] == 2 * figures.BLANK
    assert line[0] != figures.BLANK
    assert figures.braille([], 3, 1) == [3 * figures.BLANK]
    assert figures.smooth([1.0, None, 3.0], 1) == [1.0, None, 3.0]
