"""SPEC.md and the code agree: every cited rule exists, and the limits are equal."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.builtin_rows import SOURCES, lines
from sfnode.manifest import MAX_DESCRIPTION
from sfnode.manifest.sections import MAX_DEPUTIES, MAX_QUOTA, MAX_WORK_BITS
from sfnode.manifest.task import MAX_ANSWER_TOKENS, MAX_STOP, MAX_STOPS
from sfnode.manifest.training import MAX_GROUP
from sfnode.modelshare import sharing
from sfnode.tasks.dataset import SHIPPED
from sfnode.tasks.public_files import digest_of
from sfprotocol import (
    anti_entropy,
    cards,
    control_feed,
    decisions,
    fields,
    fork_resolution,
    frontier,
    invitation,
    machine,
    messages,
    model_listing,
    own_feed,
    plumtree,
    pulls,
    rate_limit,
    run_state,
    segments,
    wire_codec,
)

ROOT = Path(__file__).parents[2]
SPEC = "".join((ROOT / "protocol" / name).read_text(encoding="utf-8") for name in ("SPEC.md", "ORGANISED.md"))
RULES = re.findall(r"^\*\*([A-Z]{1,2}\d+)\.\*\*", SPEC, re.MULTILINE)

RULE = r"[A-Z]{1,2}\d+"
CITATION = re.compile(rf"SPEC ({RULE}(?:(?:-|, | and ){RULE})*)")
FAULT = re.compile(rf'"({RULE})(?:"|: )')
"""The rule that an error names: a whole string, or the beginning of one."""


def sources() -> list[Path]:
    folders = (ROOT / "protocol", ROOT / "sfnode", ROOT / "tests")
    return sorted(path for folder in folders for path in folder.rglob("*.py"))


def numbered(rule: str) -> tuple[str, int]:
    letters = rule.rstrip("0123456789")
    return letters, int(rule[len(letters) :])


def cited(text: str) -> set[str]:
    """Return the rules that a source names, ranges included."""
    found: set[str] = set()
    for citation in CITATION.findall(re.sub(r"\s+(?:# )?", " ", text)):
        found.update(re.findall(RULE, citation))
        for first, last in re.findall(rf"({RULE})-({RULE})", citation):
            (letters, low), (_, high) = numbered(first), numbered(last)
            found.update(f"{letters}{number}" for number in range(low, high + 1))
    return found


def test_rules_are_numbered_without_gaps_and_once() -> None:
    assert len(RULES) == len(set(RULES))
    by_letter: dict[str, list[int]] = {}
    for rule in RULES:
        letters, number = numbered(rule)
        by_letter.setdefault(letters, []).append(number)
    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in by_letter.values())
    assert set(by_letter) == {*"VMRUSDCFLAEBNKIOTX", "FL"}


def test_built_in_rows_are_those_of_the_files_that_the_text_names() -> None:
    """Other implementations take the rows from these files (T1)."""
    told = dict(re.findall(r"^\| `builtin:(\S+)` \|.*\| `([0-9a-f]{64})` \|$", SPEC, re.MULTILINE))
    assert told == {file.stem.replace("-", ":"): digest_of(file) for file in SHIPPED.iterdir()}


@pytest.mark.parametrize("name", SOURCES)
def test_the_files_with_built_in_rows_are_what_the_scripts_write(name: str) -> None:
    assert (SHIPPED / f"{name.replace(':', '-')}.jsonl").read_text() == lines(name)


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_cited_rule_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert cited(text) <= set(RULES)
    if "sfprotocol" in path.parts:
        assert set(FAULT.findall(text)) <= set(RULES)


def test_the_rules_refer_to_rules_that_exist() -> None:
    prose = re.sub(r"`[^`]*`", "", SPEC)
    assert set(re.findall(rf"\b{RULE}\b", prose)) == set(RULES)


def test_the_search_finds_citations_and_faults() -> None:
    text = '(SPEC A3, S4-S6), see SPEC\n    FL2 and F1; RemoteProtocolError("L2", 1)'
    assert cited(text) == {"A3", "S4", "S5", "S6", "FL2", "F1"}
    assert FAULT.findall(text) == ["L2"]
    assert FAULT.findall('return "U6: a feed"\n_require(len(x) == 3, "C3", "y")') == ["U6", "C3"]


def test_protocol_sources_cite_the_rules() -> None:
    everything = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "protocol").rglob("*.py"))
    letters = {numbered(rule)[0] for rule in cited(everything)}
    assert letters >= {"V", "R", "U", "S", "D", "C", "L", "FL", "A", "E", "B", "N", "K", "I", "O"}


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ("message", f"{wire_codec.MAX_FRAME:,} bytes"),
        ("entries of a message", f"{wire_codec.MAX_ENTRIES:,}"),
        ("updates of a Segment", f"{segments.MAX_SEGMENT_UPDATES:,}"),
        ("bytes of a Segment's updates in a first-order run", f"{messages.MAX_SIGNED_BYTES:,}"),
        ("bytes of an update of a first-order run", f"{messages.MAX_UPDATE_BYTES:,}"),
        ("listing of a base model", f"{model_listing.MAX_LISTING:,} bytes"),
        ("piece of a base model", f"{model_listing.PIECE:,} bytes"),
        ("file of data (B9)", f"{model_listing.MAX_DATA:,} bytes"),
        ("bytes of a PartReply", f"{wire_codec.MAX_PART_BYTES:,}"),
        (
            "sharing a base model",
            f"{sharing.SHARE_BURST:,.0f} bytes at once, {sharing.SHARE_RATE:,.0f} a second",
        ),
        ("characters of a URL in a link", f"{invitation.MAX_URL:,}"),
        ("characters of a link", f"{invitation.MAX_LINK:,}"),
        ("name, team", f"{fields.MAX_NAME} bytes"),
        ("updates between two cards of a feed", f"{cards.CARD_STEPS}"),
        ("updates of a group (U2)", f"{MAX_GROUP}"),
        ("tokens of an answer (T8)", f"{MAX_ANSWER_TOKENS:,}"),
        ("texts that end an answer (T8)", f"{MAX_STOPS} of {MAX_STOP} characters"),
        ("description of a run (M8)", f"{MAX_DESCRIPTION} bytes"),
        ("deputies", f"{MAX_DEPUTIES}"),
        ("quota", f"{MAX_QUOTA:,}"),
        ("reason of a Goodbye", f"{wire_codec.MAX_REASON} bytes"),
        ("feeds of an open run, and unproven names taught by one link", f"{frontier.MAX_FEEDS:,}"),
        ("bits of work of a feed (S7)", f"{MAX_WORK_BITS}"),
        ("decision", f"{decisions.MAX_DECISION:,} bytes"),
        ("entries of a list in a decision", f"{decisions.MAX_MOVES:,}"),
        ("text of an Announce", f"{decisions.MAX_TEXT:,} bytes"),
        ("tag of a move", f"{decisions.TAG_BYTES} bytes"),
        ("control feed", f"{control_feed.MAX_CONTROL:,} bytes + {control_feed.ENTRY_COST} a decision"),
        ("deputies", f"{control_feed.MAX_DEPUTIES}"),
        ("terms of which successions are kept", f"{control_feed.MAX_TERMS}"),
        ("incarnations of a member", f"{decisions.INCARNATIONS}"),
        ("members, invitations", f"2^{run_state.MAX_MEMBERS.bit_length() - 1}"),
        ("hops of pushing", f"{plumtree.TTL}"),
        ("delay of announcements", f"{plumtree.HAVE_DELAY:g} s"),
        ("pushed segments of one feed", f"{plumtree.PUSH_BURST:g} at once, {plumtree.PUSH_RATE:g} a second"),
        ("waiting for what was announced", f"{pulls.GRAFT_DELAY:g} s"),
        ("waiting before others are asked, too", f"{pulls.HEDGE_DELAY:g} s"),
        ("failed pulls in a row on a link (A9)", f"{machine.MAX_LET_DOWN}"),
        (
            "waste of a link",
            f"{rate_limit.WASTE_BURST:,.0f} bytes + {rate_limit.WASTE_BURST_PER_FEED:,.0f} a feed; "
            f"{rate_limit.WASTE_RATE:,.0f} + {rate_limit.WASTE_RATE_PER_FEED:g} a feed come back "
            "every second",
        ),
        (
            "signed messages of a link",
            f"{rate_limit.INTAKE_RATE:,.0f} bytes a second, {rate_limit.INTAKE_BURST:,.0f} at once",
        ),
        ("rest of a link in debt", f"{rate_limit.LEAST_REST:g} s or more"),
        (
            "reserve of all links",
            f"{rate_limit.RESERVE_BURST:,.0f} bytes at once, {rate_limit.RESERVE_RATE:,.0f} a second",
        ),
        (
            "news of an origin",
            f"{rate_limit.ORIGIN_RATE:,.0f} updates a second, {rate_limit.ORIGIN_BURST:,.0f} at once",
        ),
        (
            "proofs against an origin",
            f"{rate_limit.PROOF_BURST:g} at once, {rate_limit.PROOF_RATE:g} a second",
        ),
        ("feeds under inquiry on a link", f"{fork_resolution.MAX_INQUIRIES}"),
        ("burst on a link", f"{plumtree.MAX_BURST} segments, {plumtree.MAX_BURST_BYTES:,} bytes of updates"),
        ("Summary interval", f"{anti_entropy.SYNC_INTERVAL:g} s, one link in turn"),
        ("questions outstanding or planned", f"{pulls.MAX_PULLS:,}"),
        ("questions outstanding on a link", f"{pulls.MAX_PULLS_PER_LINK:,}"),
        ("time for an answer", f"{pulls.WANT_TIMEOUT:g} s"),
        ("time without asking after a forgery (A7)", f"{fork_resolution.INQUIRY_TIME:g} s"),
        ("silence before a link is dropped", f"{machine.LINK_TIMEOUT:g} s"),
        ("time between two own segments (I4)", f"{own_feed.MIN_INTERVAL:g} s to {own_feed.MAX_WAIT:g} s"),
        ("own updates that are joined (I4)", f"{own_feed.ENOUGH}"),
        (
            "progress of the run while own updates wait (I4)",
            f"1/{own_feed.EPOCH_SHARE} of an epoch by our share, "
            f"{own_feed.SEEN_SHARES}/{own_feed.EPOCH_SHARE} seen",
        ),
        ("waiting for a witness", f"{machine.ASK_TIMEOUT:g} s"),
        (
            "full Summary while digests differ",
            f"every {anti_entropy.FULL_SUMMARY_BASE:g} s + {anti_entropy.FULL_SUMMARY_PER_FEED:g} s per feed",
        ),
    ],
)
def test_the_table_of_limits_is_what_the_code_does(row: str, value: str) -> None:
    assert f"| {row} | {value} |" in SPEC
