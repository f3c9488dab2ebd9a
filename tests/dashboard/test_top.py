"""Tests of the frames of `sfnode top`: they fit any terminal, show the node's answers, and escape texts of
others."""

from __future__ import annotations

import asyncio
import math
import pty
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest
from rich.text import Text

from sfnode import printable
from sfnode.dashboard import formatting
from sfnode.dashboard.frame import Shown, absent, ascii_only, frame
from sfnode.dashboard.snapshot import Mood, Words, agreement, doing, look_at_all, measure, together
from sfnode.dashboard.top import can_be_kept_up_to_date
from sfnode.limits import Limits
from sfnode.printable import part_of, size_text
from sfnode.schema.measurements import NodeEvaluation
from sfnode.schema.node_state import NodeState, Wait
from sfnode.schema.status import DeviceStatus, GpuStatus, MachineStatus, WaitStatus
from sfnode.schema.views import Origins, OwnStanding, SwarmNode
from tests.node.helpers import PATIENCE, Swarm, eventually, manifest
from tests.schema.helpers import organised, rewarded
from tests.wording import has


async def seen_of(swarm: Swarm) -> Shown:
    """Return what a trainer shows in a complete run of three nodes."""
    await swarm.first(role="relay")
    b = await swarm.join("b")
    c = await swarm.join("c")
    # When all trainers say so nothing follows.
    await eventually(lambda: {b.node.status().state, c.node.status().state} == {"complete"})
    await eventually(lambda: b.digest == c.digest)
    await measure(b.client)
    async with asyncio.timeout(PATIENCE):
        # Summaries from before may still come, and tell for a moment of another state.
        while not in_step(seen := Shown(*await look_at_all(b.client))):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return seen


def in_step(seen: Shown) -> bool:
    return sum(bool(node.agrees) for node in seen.now.swarm.nodes) == 3


async def test_a_frame_tells_what_the_node_says_and_fits_any_terminal(swarm_of: Callable[..., Swarm]) -> None:
    swarm = swarm_of(manifest(update_budget=120))
    seen = await seen_of(swarm)
    it_tells_what_the_node_says(seen)
    it_counts_the_neighbours_for_whom_there_is_no_line(seen)
    it_says_in_one_sentence_whether_the_node_does_anything(seen)
    it_says_how_the_neighbours_compare(seen)
    it_draws_numbers_that_are_none(seen)
    it_tells_all_limits_or_that_there_are_more(seen)
    it_says_first_that_a_run_gets_worse(seen)
    it_says_why_the_node_waits(seen)
    it_names_several_devices(seen)
    it_uses_the_room_of_a_wide_terminal(seen, await swarm.nodes["b"].client.origins())
    it_tells_rewards_of_a_reward_run(seen)
    it_calls_neighbours_by_names_that_they_have_proved(seen)
    it_lists_contributions_and_obeys_no_name(seen, await swarm.nodes["b"].client.origins())
    for width, height in ((40, 8), (60, 16), (80, 24), (132, 43), (250, 100)):
        it_fits(seen, width, height)


def it_tells_what_the_node_says(seen: Shown) -> None:
    lines = [line.plain for line in frame(seen, 80, 24)]
    text = "\n".join(lines)
    assert len(lines) == 24
    known, mine = seen.now.status.known, seen.now.status.contributed
    assert " ".join(lines[1:3]).startswith(
        f"Better than before training: accuracy {known}00.0 % ({known - 1}00.0-{known + 1}00.0 %) now, 0.0 "
        "% (0.0-10.0 %) before training."
    )
    assert any(line.startswith(f"The run is complete; {mine:,} updates (") for line in lines[2:4])
    has(text, f"{part_of(known, 120)} updates", "done", "neighbours  2 in step", "loss  1.000")
    went = seen._replace(curves=seen.curves.model_copy(update={"loss": [3.0, None, 2.0, 1.0]}))
    (loss,) = [line.plain for line in frame(went, 80, 24) if line.plain.startswith("loss  1.000")]
    has(loss, "█▅▁", "1.000 to 3.000 in ")
    assert sum("same model" in line for line in lines) == 2
    assert "q quit" in lines[-1]


def it_fits(seen: Shown, width: int, height: int) -> None:
    noted = seen._replace(note="a note")
    for lines in (frame(noted, width, height), absent("/home/a", "no node answers", width, height)):
        assert len(lines) <= height
        assert max(line.cell_len for line in lines) <= width
    assert all(line.plain.isascii() for line in ascii_only(frame(seen, width, height)))


def with_neighbours(seen: Shown, *nodes: SwarmNode) -> Shown:
    swarm = seen.now.swarm.model_copy(update={"nodes": [seen.now.swarm.nodes[0], *nodes]})
    return seen._replace(now=seen.now._replace(swarm=swarm))


def with_status(seen: Shown, **fields: Any) -> Shown:
    return seen._replace(now=seen.now._replace(status=seen.now.status.model_copy(update=fields)))


def it_counts_the_neighbours_for_whom_there_is_no_line(seen: Shown) -> None:
    neighbour = seen.now.swarm.nodes[1]
    many = with_neighbours(seen, *(neighbour.model_copy(update={"peer": f"p{n}"}) for n in range(30)))
    lines = [line.plain for line in frame(many, 80, 24)]
    assert len(lines) == 24
    shown = sum("same model" in line for line in lines)
    assert f"and {30 - shown} more" in lines
    assert shown >= 3


def it_says_in_one_sentence_whether_the_node_does_anything(seen: Shown) -> None:
    def sentence(**fields: Any) -> Words:
        return doing(with_status(seen, **{"known": 200, "contributed": 50, **fields}).now)

    made = "Training: 50 updates so far (25 % of all), 1.5/s."
    assert sentence(state="training", updates_per_second=1.5) == (made, Mood.GOOD)
    assert sentence(state="training", contributed=0).text == "Training: the first update is being computed."
    assert sentence(state="paused", pauses=["hours: only 22:00-07:00"]) == (
        "Paused: hours: only 22:00-07:00.",
        Mood.WARN,
    )
    assert "7 updates are still missing" in sentence(state="catching-up", lacking=7).text
    assert sentence(state="idle", role="relay").mood == Mood.GOOD
    for state in NodeState:
        assert sentence(state=state).text
        assert sentence(state=state, role="relay").text
    alone = with_neighbours(with_status(seen, state="training"))
    assert doing(alone.now).mood == Mood.WARN
    assert "no neighbours" in doing(alone.now).text
    told = " ".join(line.plain for line in frame(alone, 80, 24)[1:5])
    assert all(word in told for word in doing(alone.now).text.split())


def it_says_first_that_a_run_gets_worse(seen: Shown) -> None:
    """All that a colour says is also in words. The advice is visible on small screens."""
    worse = with_status(seen, state="training", **organised())
    for width, height in ((40, 16), (80, 24)):
        lines = frame(worse, width, height)
        text = " ".join(line.plain for line in lines[1:5])
        assert "SF070: the run gets worse: so much. Do this first." in " ".join(text.split())
        assert "red" in str(lines[1].style)
        it_fits(worse, width, height)
    drawn = "\n".join(line.plain for line in frame(worse, 80, 24))
    said = (
        "Better by 34.8 points, but below its best: accuracy 84.8 % (82.8-86.8 %) now, 50.0 % (48.0-52.0 %) "
        "before training, 100.0 % at best (round 3)."
    )
    assert said in " ".join(drawn.split())
    assert "100 of 512 are left for it in this round" in " ".join(drawn.split())
    two = with_status(worse, alarms=2 * worse.now.status.alarms)
    assert frame(two, 80, 24)[1].plain.startswith("(1 of 2: see sfnode status) SF070")


def it_says_why_the_node_waits(seen: Shown) -> None:
    wait = WaitStatus(reason=Wait.JOIN_REQUEST, text="not admitted yet: it has asked for that 12 s ago")
    words = doing(with_status(seen, state="waiting", wait=wait).now)
    assert words == ("Waiting: not admitted yet: it has asked for that 12 s ago.", Mood.WARN)


def it_tells_all_limits_or_that_there_are_more(seen: Shown) -> None:
    limits = Limits(
        cpu=50, memory=4_000_000_000, hours="22:00-07:00", idle=10, mains=True, upload_rate=500_000
    )
    told = {width: _limits_in(frame(with_status(seen, limits=limits), width, 24)) for width in (40, 80)}
    assert (
        told[80] == "cpu 50 %, memory 4.0 GB, hours 22:00-07:00, idle 10 min, mains yes, upload_rate 500 kB"
    )
    assert told[40].startswith("cpu 50 %, memory 4.0 GB")
    assert told[40].endswith("…")


def _limits_in(lines: list[Text]) -> str:
    plain = [line.plain for line in lines]
    first = next(number for number, line in enumerate(plain) if line.startswith("limits  "))
    return " ".join(line.removeprefix("limits").strip() for line in plain[first : first + 2])


def it_says_how_the_neighbours_compare(seen: Shown) -> None:
    same = seen.now.swarm.nodes[1]
    behind = same.model_copy(update={"agrees": False, "known": 0})
    other = same.model_copy(update={"agrees": False, "differs_for": 99.0, "known": seen.now.known})
    assert together(seen.now) == ("2 in step", Mood.GOOD)
    assert together(with_neighbours(seen, same, behind).now) == ("2 in step", Mood.GOOD)
    assert together(with_neighbours(seen, same, other).now) == ("1 of 2 out of step", Mood.BAD)
    assert together(with_neighbours(seen).now) == ("no neighbours", Mood.WARN)


def it_draws_numbers_that_are_none(seen: Shown) -> None:
    odd = {"value": math.inf, "low": 1.0, "high": math.inf, "loss": math.nan, "count": 1}
    measured = [
        NodeEvaluation(metric="perplexity", **odd, seconds=s, known=9, base=False, digest="d")
        for s in (1.0, 2.0)
    ]
    curves = seen.curves.model_copy(update={"measurements": [*seen.curves.measurements, *measured]})
    assert "perplexity infinite (1-infinite) now" in "\n".join(
        line.plain for line in frame(seen._replace(curves=curves), 80, 24)
    )


def it_names_several_devices(seen: Shown) -> None:
    one = DeviceStatus(name="cuda:0", updates=1234, seconds=0.1, problem=None)
    other = DeviceStatus(name="cuda:1", updates=56, seconds=None, problem="it has failed")
    gpu = GpuStatus(
        device="cuda:0", name="H100", memory=1, memory_total=2, busy=None, celsius=None, watts=None
    )
    machine = MachineStatus(device="cuda:0,cuda:1", cpu=1.0, cores=8.0, memory=1, memory_total=2, gpus=[gpu])
    lines = [line.plain for line in frame(with_status(seen, devices=[one, other], machine=machine), 80, 40)]
    assert "devices  cuda:0: 1,234 updates  cuda:1: 56 updates failed" in lines
    assert any(line.startswith("machine 12 % of the processor") and "H100" in line for line in lines)
    lines = [line.plain for line in frame(with_status(seen, devices=[one], machine=machine), 80, 40)]
    assert not any(line.startswith("devices") for line in lines)


def it_uses_the_room_of_a_wide_terminal(seen: Shown, page: Origins) -> None:
    own = OwnStanding(rank=1, of=2, updates=99, share=0.5, counted=None, worth=None)
    lines = [line.plain for line in frame(seen._replace(origins=page, own=own), 160, 45)]
    (heads,) = [line for line in lines if line.startswith("peer ")]
    assert "rank  who" in heads
    assert "Your work: 99 updates (50 % of all), rank 1 of 2." in lines
    assert any(line.startswith("The weights have moved by ") for line in lines)
    alone = seen._replace(origins=page, only_origins=True)
    assert not any(line.plain.startswith("peer ") for line in frame(alone, 160, 45))


def it_tells_rewards_of_a_reward_run(seen: Shown) -> None:
    lines = [line.plain for line in frame(with_status(seen, **rewarded()), 160, 45)]
    assert any(line.startswith("mean reward  0.940") for line in lines)
    assert "Mean reward 0.950 now, 0.400 before training." in lines
    assert not any(word in line for line in lines for word in ("loss", "accuracy", "worth"))


def it_calls_neighbours_by_names_that_they_have_proved(seen: Shown) -> None:
    neighbour = seen.now.swarm.nodes[1]
    proved = neighbour.model_copy(update={"name": "\x1b[2JAda", "origin": "1a2b3c4d" * 8})
    lines = [line.plain for line in frame(with_neighbours(seen, proved, neighbour), 80, 24)]
    (row,) = [line for line in lines if re.search(r"Ada +1a2b3c4d ", line)]
    assert row.isprintable()
    assert any(line.startswith(formatting.short(neighbour.peer)) for line in lines)


def it_lists_contributions_and_obeys_no_name(seen: Shown, page: Origins) -> None:
    first, second = page.origins
    nasty = "\x1b[2J\u202e\x07Ada"
    named = [first.model_copy(update={"name": nasty, "team": "北京大学" * 8}), second]
    drawn = frame(seen._replace(origins=page.model_copy(update={"origins": named})), 80, 24)
    lines = [line.plain for line in drawn]
    (row,) = [line for line in lines if "Ada" in line]
    assert first.origin[:8] in row
    assert f"{first.updates:,}" in row
    assert any(second.origin[:8] in line for line in lines)
    assert max(line.cell_len for line in drawn) <= 80
    assert all(line.isprintable() for line in lines)
    title = frame(with_status(seen, run_name="\x1b]0;mine\x07"), 80, 24)[0].plain
    assert title.isprintable()
    ourselves = seen.now.swarm.nodes[0].model_copy(update={"name": "x" * 32})
    long = [first.model_copy(update={"name": "x" * 32}), second]
    crowded = frame(seen._replace(origins=page.model_copy(update={"origins": long})), 40, 24)
    (row,) = [line.plain for line in crowded if "x…" in line.plain]
    assert first.origin[:8] in row, "a name gives way, its key does not"
    titled = seen._replace(
        now=seen.now._replace(swarm=seen.now.swarm.model_copy(update={"nodes": [ourselves]}))
    )
    assert seen.now.status.origin[:8] in frame(titled, 80, 24)[0].plain


def test_a_terminal_that_cannot_move_its_cursor_is_not_kept_up_to_date(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "r+b", buffering=0) as terminal, open(ours, "r+b", buffering=0):
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(sys, "stdout", terminal)
        assert can_be_kept_up_to_date({"TERM": "xterm"})
        assert not any(can_be_kept_up_to_date({"TERM": name}) for name in ("dumb", "unknown", ""))
        assert not can_be_kept_up_to_date({})


def test_agreement_is_told_in_words_and_alarms_only_when_it_lasts() -> None:
    def node(known: int, agrees: bool, differs_for: float | None) -> SwarmNode:
        who = {"peer": "a", "kind": "neighbour", "role": "trainer", "lag": 0}
        return SwarmNode.model_validate(who | {"known": known, "agrees": agrees, "differs_for": differs_for})

    assert agreement(node(7, True, None), 9) == ("same model", Mood.GOOD)
    assert agreement(node(7, False, 99.0), 9) == ("2 behind", Mood.NEUTRAL)
    assert agreement(node(9, False, 99.0), 7) == ("2 ahead", Mood.NEUTRAL)
    assert agreement(node(7, False, 3.0), 7) == ("under way", Mood.NEUTRAL)
    assert agreement(node(7, False, 99.0), 7) == ("another model", Mood.BAD)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (part_of(454, 1000), "454 of 1,000"),
        (part_of(1000, 1000), "1,000 of 1,000"),
        (part_of(1046, 1000), "1,000 and 46 more"),
        (size_text(999), "999 B"),
        (size_text(1234), "1.2 kB"),
        (size_text(999_600), "1.0 MB"),
        (size_text(5e15), "5000 TB"),
        (printable.span(41), "41 s"),
        (printable.span(185), "3 min 05 s"),
        (printable.span(730), "12 min"),
        (printable.span(3 * 3600 + 300), "3 h 05 min"),
        (printable.span(100 * 3600), "4 d 4 h"),
        (printable.span(None), "?"),
        (formatting.delay(0.0004), "0.4 ms"),
        (formatting.delay(0.012), "12 ms"),
        (formatting.delay(1.26), "1.3 s"),
        (printable.rate(None), "?"),
        (printable.rate(1234.5), "1,234"),
        (formatting.bar(0.5, 4), "██░░"),
        (formatting.percent(0.5), "50 %"),
        (formatting.percent(0.0123), "1.2 %"),
        (formatting.percent(1e-9), "< 0.1 %"),
        (formatting.percent(0.0), "0 %"),
        (formatting.percent(-0.031), "-3.1 %"),
        (formatting.printable("a\x1b[31m\u202eb\u2067"), "a\ufffd[31m\ufffdb\ufffd"),
        (formatting.spark([0, 1, 2], 9), "▁▅█"),
        (formatting.spark([0, math.inf, math.nan, None, 2], 9), "▁█"),
        (formatting.spark([0, 2, 1, 3], 2), "▁█"),
        (formatting.spark([], 9), ""),
        (formatting.short("a" * 20, 4), "…aaa"),
    ],
)
def test_figures_read_well(given: str, expected: str) -> None:
    assert given == expected
