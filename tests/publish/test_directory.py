"""Tests of `sfnode publish directory`: files of several runs, signed or not, valid or not."""

from __future__ import annotations

import json
import re
import shlex
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sfnode.errors import Code
from sfnode.peers.contacts import MAX_FILE
from sfnode.publish.run_file import MOST_COUNT, MOST_VALUE, RunFile
from sfnode.publish.signature import Signer
from sfprotocol.control_feed import ControlFeed, election_message, succession_message
from sfprotocol.decisions import Announce, Ballot, Decision, Elected, StandIn, StandIns, read
from sfprotocol.decisions import encode as encode_decision
from sfprotocol.messages import ELECTED_TERMS, Entry, Succession, Vote
from sfprotocol.wire_codec import encode
from tests.cli.helpers import Ended, Run
from tests.peers.test_contacts import page, web_server
from tests.protocol.feeds import origin_of, signing_key
from tests.publish.helpers import Page, link_to
from tests.publish.runs import manifest_of
from tests.refusals import refused
from tests.wording import has

Make = Callable[..., tuple[Page, Ended]]
"""Function that makes the page of some files, like the fixture `directory`."""

EVALUATION = {
    "metric": "accuracy", "value": 0.8, "low": 0.78, "high": 0.82, "loss": 0.4, "count": 872, "epoch": 1,
    "base": False,
}  # fmt: skip
SAID: dict[str, Any] = {
    "run_id": "ab" * 32,
    "run_name": "reviews",
    "title": "Film reviews",
    "link": link_to(manifest_of()),
    "updated": datetime(2026, 11, 23, 12, tzinfo=UTC).isoformat(),
    "protocol": 2,
    "organised": True,
    "complete": False,
    "model": "opt-125m",
    "task": "classification: bad / good",
    "data": "builtin:reviews:train",
    "updates": 1234,
    "budget": 5000,
    "members": 7,
    "updates_per_hour": None,
    "seal": None,
    "digest": None,
    "quality": {
        "verdict": "better",
        "latest": EVALUATION,
        "base": EVALUATION | {"value": 0.5, "low": 0.48, "high": 0.52, "base": True},
        "best": EVALUATION,
        "calibrated": None,
    },
    "curve": [{"epoch": n, "value": 0.7 + n / 10, "low": 0.6, "high": 0.9} for n in range(2)],
    "sizes": {"log": 9, "model": None},
}


def written(folder: Path, name: str, **changes: object) -> Path:
    (folder / name).write_text(json.dumps(SAID | changes))
    return folder / name


@pytest.fixture
def directory(sfnode: Run, tmp_path: Path) -> Make:
    """Return a function that makes a page of these files, and returns it with the output of the command."""

    def make(*sources: object) -> tuple[Page, Ended]:
        ended = sfnode("publish", "directory", *sources, "--out", tmp_path / "page").done()
        return Page.of(tmp_path / "page" / "index.html"), ended

    return make


def test_runs_stand_there_with_their_figures_and_how_to_join(directory: Make, tmp_path: Path) -> None:
    first = written(tmp_path, "1.json", description="Reads reviews.")
    second = written(
        tmp_path, "2.json", run_id="cd" * 32, title="Another", url="https://example.org/another/"
    )
    found, ended = directory(first, second)
    has(found.words, "Film reviews", "Reads reviews.", "80.0 %", "7 members")
    assert "better by 30.0 points than 50.0 % before training" in found.words
    has(found.words, f"sfnode join {SAID['link']}", "sfnode join https://example.org/another/run.json")
    assert [one["href"] for one in found.named("a")] == ["https://example.org/another/"]
    assert "(2 of 2 runs)" in ended.out


def test_a_run_from_a_web_server_has_its_page_there(directory: Make) -> None:
    data = json.dumps(SAID | {"url": "https://elsewhere.example/"}).encode()
    with web_server(page(data)) as url:
        found, _ = directory(f"{url}/reviews/run.json")
    assert [one["href"] for one in found.named("a")] == [f"{url}/reviews/"]


def test_what_cannot_be_read_is_listed_without_the_folders_of_the_machine(
    directory: Make, tmp_path: Path
) -> None:
    sources = [
        tmp_path / "missing.json",
        "http://127.0.0.1:9/run.json",
        written(tmp_path, "x.json", run_id=""),
    ]
    found, ended = directory(*sources, written(tmp_path, "1.json"))
    for words in ("missing.json", "No such file", "http://127.0.0.1:9/run.json", "x.json", "run_id"):
        assert words in found.words
        assert words in ended.err
    assert str(tmp_path) not in found.words
    assert "(1 of 4 runs)" in ended.out


def test_of_a_run_that_is_told_of_twice_the_first_word_counts_if_none_is_signed(
    directory: Make, tmp_path: Path
) -> None:
    early = written(tmp_path, "1.json", updated="2026-01-01T00:00:00Z", title="Early")
    found, _ = directory(early, written(tmp_path, "2.json", title="Late"))
    assert "Early" in found.words
    assert "Late" not in found.words


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"updated": "0001-01-01T00:00:00"}, "time zone"),
        ({"updated": "0001-01-01T00:00:00+14:00"}, "end of time"),
        ({"updated": "9999-12-31T23:59:59-14:00"}, "end of time"),
        ({"updated": "2999-01-01T00:00:00Z"}, "yet to come"),
        (
            {"curve": [{"epoch": n, "value": 1e308 * (-1) ** n, "low": 0, "high": 0} for n in range(2)]},
            "curve",
        ),
        ({"updates_per_hour": 1e308}, "updates_per_hour"),
        ({"quality": SAID["quality"] | {"base": EVALUATION | {"value": -1e308}}}, "quality.base"),
        ({"quality": SAID["quality"] | {"latest": EVALUATION | {"metric": "\x1b[2J"}}}, "metric"),
        ({"quality": SAID["quality"] | {"latest": EVALUATION | {"metric": "x" * 9_999}}}, "metric"),
        ({"quality": SAID["quality"] | {"latest": EVALUATION | {"epoch": 10**4000}}}, "quality.latest"),
    ],
)
def test_an_entry_that_nobody_could_have_published_is_left_out_with_a_reason(
    directory: Make, tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    other = written(tmp_path, "other.json", run_id="cd" * 32, title="Another")
    found, ended = directory(written(tmp_path, "bad.json", **changes), other)
    assert "Another" in found.words
    assert reason in found.words
    assert reason in ended.err
    assert "(1 of 2 runs)" in ended.out


def test_what_can_be_measured_at_most_is_drawn(directory: Make, tmp_path: Path) -> None:
    ends = [
        {"epoch": n, "value": MOST_VALUE * (-1) ** n, "low": "-Infinity", "high": "NaN"} for n in range(2)
    ]
    best = EVALUATION | {"value": MOST_VALUE, "epoch": MOST_COUNT, "high": "Infinity", "metric": "perplexity"}
    quality = SAID["quality"] | {"latest": best, "base": best | {"value": -MOST_VALUE}}
    _, ended = directory(written(tmp_path, "1.json", curve=ends, quality=quality))
    assert "(1 of 1 runs)" in ended.out


# -- whose word counts -----------------------------------------------------------------------------------

DEPUTY = "deputy"
TERM = ELECTED_TERMS
"""Term that the first succession begins."""

SIGNED = manifest_of(
    protocol=4,
    organised=manifest_of().organised.model_copy(update={"deputies": (origin_of(DEPUTY).hex(),), "votes": 1}),
)


def control_feed(last: Succession | None = None) -> ControlFeed:
    """Return a control feed without decisions, after this succession."""
    authority = SIGNED.parameters().organised
    assert authority
    control = ControlFeed(authority)
    if last:
        control.succeed(last)
    return control


def succession(term: int, name: str) -> Succession:
    """Return a succession by which `name` becomes the organiser."""
    bare = Succession(term, 0, control_feed().chain, origin_of(name), ())
    message = succession_message(SIGNED.run_id, bare)
    return replace(bare, votes=(Vote(0, signing_key(DEPUTY).sign(message)),))


def signed(
    folder: Path, title: str, by: str, last: Succession | ControlFeed | None = None, **changes: object
) -> Path:
    """Write a file that `by` signed, with the proof in this control feed or succession."""
    control = last if isinstance(last, ControlFeed) else control_feed(last)
    run = RunFile.model_validate(SAID | {"run_id": SIGNED.run_id.hex(), "title": title} | changes)
    path = folder / f"{title}.json"
    path.write_bytes(Signer(SIGNED, control, signing_key(by).sign).write(run))
    return path


Turns = list[tuple[bytes, int, Entry]]

THREE = ("one", "two", "three")
"""Members who stand in for the organiser."""


def names(*who: str) -> StandIns:
    return StandIns(tuple(StandIn(place, origin_of(name)) for place, name in enumerate(who)))


def decided(control: ControlFeed, by: str, *said: Decision) -> ControlFeed:
    for decision in said:
        assert control.add(control.stop, [control.sign(encode_decision(decision), signing_key(by).sign)]) == 1
    return control


def elected(control: ControlFeed, term: int, name: str, by: Sequence[str]) -> ControlFeed:
    """Add an election of `name` by these stand-ins to a control feed."""
    message = election_message(SIGNED.run_id, term, control.stop, control.chain, origin_of(name))
    places = {key: place for place, key in enumerate(control.stand_ins)}
    ballots = tuple(Ballot(places[origin_of(voter)], signing_key(voter).sign(message)) for voter in by)
    control.add(
        control.stop, [control.elect(term, Elected(origin_of(name), ballots), signing_key(name).sign)]
    )
    return control


def begun(last: Succession | None = None, *who: str) -> ControlFeed:
    """Return a control feed, a few decisions long, with stand-ins."""
    return decided(
        control_feed(last), "organiser", Announce("welcome"), names(*who or THREE), Announce("go on")
    )


def test_an_election_counts_by_those_whom_one_that_was_elected_has_named(
    directory: Make, tmp_path: Path
) -> None:
    control = decided(elected(begun(), 1, "two", ["two", "three"]), "two", names("two", "four", "five"))
    path = signed(tmp_path, "Elected", "five", elected(control, 3, "five", ["four", "five"]))
    assert "(1 of 1 runs)" in directory(path)[1].out


def _instead(turn: tuple[bytes, int, Entry], change: Callable[[Any], Decision]) -> tuple[bytes, int, Entry]:
    chain, place, entry = turn
    return chain, place, entry._replace(record=encode_decision(change(read(entry.record).decision)))


FORGED: dict[str, Callable[[Turns], Turns]] = {
    "too few ballots": lambda turns: [
        turns[0],
        _instead(turns[1], lambda said: replace(said, ballots=said.ballots[:1])),
    ],
    "ballots of another place": lambda turns: [turns[0], (turns[1][0], turns[1][1] + 1, turns[1][2])],
    "stand-ins that nobody has signed": lambda turns: [
        _instead(turns[0], lambda said: names("two", "mallory")),
        turns[1],
    ],
    "nobody stands in": lambda turns: turns[1:],
    "the wrong way round": lambda turns: turns[::-1],
}


@pytest.mark.parametrize("change", FORGED.values(), ids=FORGED)
def test_a_key_that_too_few_have_elected_signs_nothing(
    directory: Make, tmp_path: Path, change: Callable[[Turns], Turns]
) -> None:
    control = elected(begun(), 1, "two", ["two", "three"])
    forged_turns = change(control.turns())
    control.turns = lambda: forged_turns  # type: ignore[method-assign]
    found, ended = directory(
        signed(tmp_path, "Forged", "two", control), signed(tmp_path, "True", "organiser")
    )
    assert "Forged.json" in ended.err
    assert "True" in found.words


def forged(folder: Path, title: str, **changes: object) -> Path:
    """Write an unsigned file about the same run."""
    return written(folder, f"{title}.json", run_id=SIGNED.run_id.hex(), title=title, **changes)


def test_the_word_that_the_organiser_has_signed_wins_whatever_comes_first_or_has_the_later_date(
    directory: Make, tmp_path: Path
) -> None:
    genuine = signed(tmp_path, "Genuine", "organiser", updated="2026-01-01T00:00:00Z")
    found, ended = directory(forged(tmp_path, "First"), genuine, forged(tmp_path, "Last"))
    assert "Genuine" in found.words
    assert not {"First", "Last"} & set(found.words.split())
    assert "(3 of 3 runs)" in ended.out


EARLY = "2026-01-01T00:00:00Z"


def _elected_or_silent(folder: Path) -> list[Path]:
    control = decided(elected(begun(), 1, "two", ["two", "three"]), "two", Announce("here I am"))
    return [
        signed(folder, "Loses", "organiser", begun()),
        signed(folder, "Wins", "two", control, updated=EARLY),
    ]


def _organises_again(folder: Path) -> list[Path]:
    control = elected(begun(None, "organiser", *THREE), 1, "two", ["one", "two", "three"])
    stood_in = signed(folder, "Loses", "two", control.copy())
    again = elected(control, 2, "organiser", ["organiser", "one", "three"])
    return [stood_in, signed(folder, "Wins", "organiser", again, updated=EARLY)]


def _succession_after_an_election(folder: Path) -> list[Path]:
    stood_in = signed(folder, "Loses", "two", elected(begun(), 1, "two", ["two", "three"]))
    return [stood_in, signed(folder, "Wins", "heir", succession(TERM, "heir"), updated=EARLY)]


WORDS: dict[str, Callable[[Path], list[Path]]] = {
    "of an elected stand-in, over that of the organiser that fell silent": _elected_or_silent,
    "of who organises again, over that of who stood in": _organises_again,
    "by a succession, over that of an elected stand-in": _succession_after_an_election,
    "the later one of two of the organiser": lambda folder: [
        signed(folder, "Loses", "organiser", updated=EARLY),
        signed(folder, "Wins", "organiser"),
    ],
    "by a succession, over that of the first key": lambda folder: [
        signed(folder, "Loses", "organiser"),
        signed(folder, "Wins", "heir", succession(TERM, "heir"), updated=EARLY),
    ],
}


@pytest.mark.parametrize("words", WORDS.values(), ids=WORDS)
def test_of_signed_words_the_last_one_of_the_latest_term_wins(
    directory: Make, tmp_path: Path, words: Callable[[Path], list[Path]]
) -> None:
    found, ended = directory(*words(tmp_path))
    assert "(2 of 2 runs)" in ended.out
    assert "Wins" in found.words
    assert "Loses" not in found.words


def test_the_first_word_counts_where_the_deputies_have_named_two(directory: Make, tmp_path: Path) -> None:
    two = [signed(tmp_path, name, name, succession(TERM, name)) for name in ("one", "two")]
    found, _ = directory(forged(tmp_path, "First"), *two)
    assert "First" in found.words


def _with_manifest(data: bytes, manifest: bytes) -> bytes:
    return re.sub(rb'"manifest":"[^"]*"', b'"manifest":"%s"' % manifest, data)


def _with_a_succession_without_votes(data: bytes) -> bytes:
    frame = encode(replace(succession(TERM, "mallory"), votes=()))
    return data.replace(b'"succession":""', b'"succession":"%s"' % frame.hex().encode())


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "changed": lambda data: data.replace(b"Genuine", b"Changed"),
    "appended": lambda data: data.rstrip()[:-1] + b',"title":"Changed"}',
    "of another run": lambda data: data.replace(SIGNED.run_id.hex().encode(), b"cd" * 32),
    "without a manifest": lambda data: _with_manifest(data, b""),
    "of a deep manifest": lambda data: _with_manifest(data, b64encode(b"\x91" * 5_000 + b"\x90")),
    "with a succession without votes": _with_a_succession_without_votes,
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_a_signature_that_does_not_hold_keeps_an_entry_out(
    directory: Make, tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    genuine = signed(tmp_path, "Genuine", "organiser")
    bad = tmp_path / "bad.json"
    bad.write_bytes(change(genuine.read_bytes()))
    found, ended = directory(bad, genuine)
    assert "Genuine" in found.words
    assert "Changed" not in found.words
    has(ended.err, "bad.json", "sign")


def test_hostile_texts_are_text(directory: Make, tmp_path: Path) -> None:
    hostile = "</title><script>alert(1)</script>"
    texts = dict.fromkeys(("title", "description", "model", "task", "data"), hostile)
    found, _ = directory(written(tmp_path, "1.json", **texts))
    assert list(found.dangers()) == []
    assert hostile in found.words


def test_what_is_to_be_copied_is_for_a_shell_just_a_command(directory: Make, tmp_path: Path) -> None:
    found, _ = directory(written(tmp_path, "1.json", url="https://example.org/~ann/a=1,b/"))
    (said,) = re.findall("sfnode join .*", found.words)
    assert shlex.split(said) == ["sfnode", "join", "https://example.org/~ann/a=1,b/run.json"]


@pytest.mark.parametrize(
    "changes",
    [
        {"url": "javascript:alert(1)"},
        {"url": "https://nice.example/$(curl${IFS}x.example)/"},
        {"url": "https://nice.example/;id/"},
        {"url": f"https://nice.example/{'x' * 300}/"},
        {"link": 'sfnode:x" onclick="alert(1)'},
        {"title": "x" * 121},
        {"title": "\u202eesrever"},
        {"updates": -1},
        {"updates": 1 << 70},
        {"curve": [SAID["curve"][0]] * 1000},
        {"version": 2},
        {"run_name": "../../etc"},
        {"description": "x" * MAX_FILE},
    ],
)
def test_what_is_out_of_bounds_is_refused(changes: dict[str, object]) -> None:
    with refused(Code.BAD_RUN_FILE):
        RunFile.parse(json.dumps(SAID | changes).encode(), "it")


def test_what_later_versions_add_is_passed_over() -> None:
    assert RunFile.parse(json.dumps(SAID | {"news": 1}).encode(), "it").title == "Film reviews"
