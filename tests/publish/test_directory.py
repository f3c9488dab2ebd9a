"""`sfnode publish directory`: several runs on one page, whoever has written their files."""

from __future__ import annotations

import json
import re
import shlex
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sfnode.errors import Code, UserError
from sfnode.peers.contacts import MAX_FILE
from sfnode.publish.run_file import MOST_COUNT, MOST_VALUE, RunFile
from sfnode.publish.signature import Signer
from sfprotocol.control_feed import ControlFeed, succession_message
from sfprotocol.messages import Succession, Vote
from sfprotocol.wire_codec import encode
from tests.cli.helpers import Ended, Run
from tests.peers.test_contacts import page, web_server
from tests.protocol.feeds import origin_of, signing_key
from tests.publish.helpers import Page, link_to
from tests.publish.runs import manifest_of

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
def directory(sfnode: Run, tmp_path: Path) -> Callable[..., tuple[Page, Ended]]:
    """Make a directory of these files; return the page, and what the command has said."""

    def make(*sources: object) -> tuple[Page, Ended]:
        ended = sfnode("publish", "directory", *sources, "--out", tmp_path / "page")
        assert ended.status == 0, ended.err
        return Page.of(tmp_path / "page" / "index.html"), ended

    return make


def test_runs_stand_there_with_their_figures_and_how_to_join(
    directory: Callable[..., tuple[Page, Ended]], tmp_path: Path
) -> None:
    first = written(tmp_path, "1.json", description="Reads reviews.")
    second = written(
        tmp_path, "2.json", run_id="cd" * 32, title="Another", url="https://example.org/another/"
    )
    found, ended = directory(first, second)
    for words in (
        "Film reviews",
        "Reads reviews.",
        "80.0 %",
        "better by 30.0 points than 50.0 % before training",
        "7 members",
    ):
        assert words in found.words
    assert f"sfnode join {SAID['link']}" in found.words
    assert "sfnode join https://example.org/another/run.json" in found.words
    assert [one["href"] for one in found.named("a")] == ["https://example.org/another/"]
    assert "(2 of 2 runs)" in ended.out


def test_a_run_from_a_web_server_has_its_page_there(directory: Callable[..., tuple[Page, Ended]]) -> None:
    data = json.dumps(SAID | {"url": "https://elsewhere.example/"}).encode()
    with web_server(page(data)) as url:
        found, _ = directory(f"{url}/reviews/run.json")
    assert [one["href"] for one in found.named("a")] == [f"{url}/reviews/"]


def test_what_cannot_be_read_is_listed_without_the_folders_of_the_machine(
    directory: Callable[..., tuple[Page, Ended]], tmp_path: Path
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
    directory: Callable[..., tuple[Page, Ended]], tmp_path: Path
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
    directory: Callable[..., tuple[Page, Ended]], tmp_path: Path, changes: dict[str, object], reason: str
) -> None:
    other = written(tmp_path, "other.json", run_id="cd" * 32, title="Another")
    found, ended = directory(written(tmp_path, "bad.json", **changes), other)
    assert "Another" in found.words
    assert reason in found.words
    assert reason in ended.err
    assert "(1 of 2 runs)" in ended.out


def test_what_can_be_measured_at_most_is_drawn(
    directory: Callable[..., tuple[Page, Ended]], tmp_path: Path
) -> None:
    ends = [
        {"epoch": n, "value": MOST_VALUE * (-1) ** n, "low": "-Infinity", "high": "NaN"} for n in range(2)
    ]
    best = EVALUATION | {"value": MOST_VALUE, "epoch": MOST_COUNT, "high": "Infinity", "metric": "perplexity"}
    quality = SAID["quality"] | {"latest": best, "base": best | {"value": -MOST_VALUE}}
    _, ended = directory(written(tmp_path, "1.json", curve=ends, quality=quality))
    assert "(1 of 1 runs)" in ended.out


# -- whose word counts -----------------------------------------------------------------------------------

DEPUTY = "deputy"
SIGNED = manifest_of(
    organised=manifest_of().organised.model_copy(update={"deputies": (origin_of(DEPUTY).hex(),), "votes": 1})
)


def succession(term: int, name: str) -> Succession:
    """The deputy's decision that `name` organises from now on."""
    authority = SIGNED.parameters().organised
    assert authority
    bare = Succession(term, 0, ControlFeed(authority).chain, origin_of(name), ())
    message = succession_message(authority.run_id, bare)
    return replace(bare, votes=(Vote(0, signing_key(DEPUTY).sign(message)),))


def signed(folder: Path, title: str, by: str, last: Succession | None = None, **changes: object) -> Path:
    """Write the file that this organiser publishes."""
    authority = SIGNED.parameters().organised
    assert authority
    control = ControlFeed(authority)
    if last:
        control.succeed(last)
    run = RunFile.model_validate(SAID | {"run_id": SIGNED.run_id.hex(), "title": title} | changes)
    path = folder / f"{title}.json"
    path.write_bytes(Signer(SIGNED, control, signing_key(by).sign).write(run))
    return path


def forged(folder: Path, title: str, **changes: object) -> Path:
    """Write a file about the same run that nobody has signed."""
    return written(folder, f"{title}.json", run_id=SIGNED.run_id.hex(), title=title, **changes)


def test_the_word_that_the_organiser_has_signed_wins_whatever_comes_first_or_has_the_later_date(
    directory: Callable[..., tuple[Page, Ended]], tmp_path: Path
) -> None:
    genuine = signed(tmp_path, "Genuine", "organiser", updated="2026-01-01T00:00:00Z")
    found, ended = directory(forged(tmp_path, "First"), genuine, forged(tmp_path, "Last"))
    assert "Genuine" in found.words
    assert not {"First", "Last"} & set(found.words.split())
    assert "(3 of 3 runs)" in ended.out


def test_of_two_words_of_the_organiser_the_later_one_wins(
    directory: Callable[..., tuple[Page, Ended]], tmp_path: Path
) -> None:
    now = signed(tmp_path, "Now", "organiser")
    found, _ = directory(signed(tmp_path, "Then", "organiser", updated="2026-01-01T00:00:00Z"), now)
    assert "Now" in found.words
    assert "Then" not in found.words


def test_after_a_succession_the_word_of_the_new_key_wins(
    directory: Callable[..., tuple[Page, Ended]], tmp_path: Path
) -> None:
    later = signed(tmp_path, "Deposed", "organiser")
    heir = signed(tmp_path, "Heir", "heir", succession(1, "heir"), updated="2026-01-01T00:00:00Z")
    found, _ = directory(later, heir)
    assert "Heir" in found.words
    assert "Deposed" not in found.words


def test_the_first_word_counts_where_the_deputies_have_named_two(
    directory: Callable[..., tuple[Page, Ended]], tmp_path: Path
) -> None:
    two = [signed(tmp_path, name, name, succession(1, name)) for name in ("one", "two")]
    found, _ = directory(forged(tmp_path, "First"), *two)
    assert "First" in found.words


def _changed(data: bytes) -> bytes:
    return data.replace(b"Genuine", b"Changed")


def _appended(data: bytes) -> bytes:
    return data.rstrip()[:-1] + b',"title":"Changed"}'


def _of_another_run(data: bytes) -> bytes:
    return data.replace(SIGNED.run_id.hex().encode(), b"cd" * 32)


def _without_manifest(data: bytes) -> bytes:
    return re.sub(rb'"manifest":"[^"]*"', b'"manifest":""', data)


def _of_a_deep_manifest(data: bytes) -> bytes:
    deep = b64encode(b"\x91" * 5_000 + b"\x90")
    return re.sub(rb'"manifest":"[^"]*"', b'"manifest":"%s"' % deep, data)


def _with_a_succession_without_votes(data: bytes) -> bytes:
    frame = encode(replace(succession(1, "mallory"), votes=()))
    return data.replace(b'"succession":""', b'"succession":"%s"' % frame.hex().encode())


@pytest.mark.parametrize(
    "change",
    [
        _changed,
        _appended,
        _of_another_run,
        _without_manifest,
        _of_a_deep_manifest,
        _with_a_succession_without_votes,
    ],
)
def test_a_signature_that_does_not_hold_keeps_an_entry_out(
    directory: Callable[..., tuple[Page, Ended]], tmp_path: Path, change: Callable[[bytes], bytes]
) -> None:
    genuine = signed(tmp_path, "Genuine", "organiser")
    bad = tmp_path / "bad.json"
    bad.write_bytes(change(genuine.read_bytes()))
    found, ended = directory(bad, genuine)
    assert "Genuine" in found.words
    assert "Changed" not in found.words
    assert "bad.json" in ended.err
    assert "sign" in ended.err


def test_hostile_texts_are_text(directory: Callable[..., tuple[Page, Ended]], tmp_path: Path) -> None:
    hostile = "</title><script>alert(1)</script>"
    texts = dict.fromkeys(("title", "description", "model", "task", "data"), hostile)
    found, _ = directory(written(tmp_path, "1.json", **texts))
    assert list(found.dangers()) == []
    assert hostile in found.words


def test_what_is_to_be_copied_is_for_a_shell_just_a_command(
    directory: Callable[..., tuple[Page, Ended]], tmp_path: Path
) -> None:
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
        {"updated": "2026-01-01T00:00:00"},
        {"version": 2},
        {"run_name": "../../etc"},
        {"description": "x" * MAX_FILE},
    ],
)
def test_what_is_out_of_bounds_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(UserError) as error:
        RunFile.parse(json.dumps(SAID | changes).encode(), "it")
    assert error.value.code is Code.BAD_RUN_FILE


def test_what_later_versions_add_is_passed_over() -> None:
    assert RunFile.parse(json.dumps(SAID | {"news": 1}).encode(), "it").title == "Film reviews"
