"""Certificates: who has signed them, what they say, and what becomes of one that somebody has changed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sfnode.cli.certificate import in_words
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.publish import certificate as certificates
from sfnode.publish.certificate import Certificate, Statement, check, issue
from sfnode.store.log import UpdateLog
from sfprotocol.control_feed import ControlFeed, succession_message
from sfprotocol.messages import Succession, Vote
from sfprotocol.names import NAMELESS
from tests.cli.helpers import Ended
from tests.protocol.feeds import origin_of, signing_key
from tests.publish.conftest import EPOCHS
from tests.publish.runs import HOSTILE, manifest_of, write_organiser_key, write_run

Run = Callable[..., Ended]

RUN = manifest_of()
ANN, STRANGE = (origin_of(f"member {n}").hex() for n in (0, 1))
ISSUED = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def feed(folder: Path) -> ControlFeed:
    with UpdateLog.open(folder / "updates.sqlite", RUN.run_id, read_only=True) as log:
        return certificates.control_of(RUN.parameters(), log)


@pytest.fixture
def statement(feed: ControlFeed) -> Statement:
    """What the log says of a member."""
    return said_of(feed, ANN)


def said_of(feed: ControlFeed, member: str, name: str = "Anneli") -> Statement:
    return certificates.contribution(RUN, feed, feed.stop, bytes.fromhex(member), name=name, issued=ISSUED)


def signed(said: Statement, by: str = "organiser", succession: Succession | None = None) -> Certificate:
    return issue(said, signing_key(by).sign, succession)


@pytest.fixture
def certify(sfnode: Run, folder: Path, tmp_path: Path) -> Callable[..., Path]:
    """Have a certificate made; return the file."""

    def run(name: str, key: str = ANN[:8], *options: object) -> Path:
        keys = folder.parent / "keys"
        options = (*options, "--data-dir", folder, "--keys-dir", keys)
        ended = sfnode("certificate", key, "--out", tmp_path / name, *options)
        assert ended.status == 0, ended.err
        return tmp_path / name

    return run


# -- commands --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.svg", "a.json"])
def test_what_is_issued_verifies_with_the_manifest_and_with_the_log(
    certify: Callable[..., Path], sfnode: Run, folder: Path, tmp_path: Path, name: str
) -> None:
    file = certify(name)
    ended = sfnode("verify-certificate", file, "--run", folder / "run.toml", "--data-dir", tmp_path)
    assert (ended.status, ended.err) == (0, "")
    first, second = ended.out.splitlines()
    assert first.startswith(f"Anneli ({ANN}): 15 updates of epochs 0 to {EPOCHS - 1} count in run reviews")
    assert second.startswith(f"signed by the organiser of run {RUN.run_id.hex()}")
    with_log = sfnode("verify-certificate", file, "--data-dir", folder).out.splitlines()
    assert with_log[:2] == [first, second]
    assert with_log[2].endswith("decisions in the log here come to the same")


def test_of_what_nobody_has_measured_the_worth_is_left_out_with_the_reason(statement: Statement) -> None:
    """As in a reward run, always."""
    found = signed(statement.model_copy(update={"measured": 0, "worth": 0}))
    reason = "rewards have no worth in nats"
    assert f"Nobody has measured what they were worth ({reason})" in found.drawing().decode()
    assert in_words(found).endswith(f", their worth not measured ({reason})")


def test_a_name_may_be_left_out(certify: Callable[..., Path]) -> None:
    found = Certificate.parse(certify("a.json", ANN, "--without-name").read_bytes(), "a.json")
    assert (found.statement.name, found.statement.member) == ("", ANN)


def test_a_hostile_name_is_drawn_as_text(certify: Callable[..., Path]) -> None:
    drawing = certify("a.svg", STRANGE).read_text()
    assert "<script" not in drawing
    assert HOSTILE.name.replace("<", "&lt;").replace(">", "&gt;") in drawing


@pytest.mark.parametrize(
    ("key", "out", "status", "says"),
    [
        ("0" * 8, "a.json", 1, "no member has a key that begins with 00000000"),
        ("ann", "a.json", 2, "8 to 64 hex digits"),
        (ANN, "a.pdf", 1, "ends in .svg or .json"),
    ],
)
def test_what_cannot_be_certified_is_said(
    sfnode: Run, folder: Path, tmp_path: Path, key: str, out: str, status: int, says: str
) -> None:
    ended = sfnode("certificate", key, "--out", tmp_path / out, "--data-dir", folder)
    assert (ended.status, says in ended.err) == (status, True)
    assert not (tmp_path / out).exists()


def test_only_the_organisers_key_makes_them(sfnode: Run, folder: Path, tmp_path: Path) -> None:
    ask = ("certificate", ANN, "--out", tmp_path / "a.json", "--data-dir", folder, "--keys-dir", tmp_path)
    assert "SF044" in sfnode(*ask).err
    write_organiser_key(RUN, tmp_path, signing_key("somebody"))
    assert "SF045" in sfnode(*ask).err


def test_a_certificate_needs_a_run_to_be_checked_against(
    certify: Callable[..., Path], sfnode: Run, tmp_path: Path
) -> None:
    file = certify("a.json")
    assert "SF043" in sfnode("verify-certificate", file, "--data-dir", tmp_path / "none").err
    write_run(tmp_path / "other", manifest_of(name="other"), [NAMELESS], updates=1, epochs=1)
    assert "SF013" in sfnode("verify-certificate", file, "--data-dir", tmp_path / "other").err


# -- what is signed --------------------------------------------------------------------------------------


OTHERS: dict[str, Any] = {
    "run_name": "another", "member": STRANGE, "name": "Bob", "updates": 16, "measured": 16,
    "worth": 10**9, "first_epoch": 1, "last_epoch": 1, "seal": 1, "digest": "00" * 32, "decisions": 3,
    "chain": "00" * 32, "issued": "2026-11-24T12:00:00Z",
}  # fmt: skip


@pytest.mark.parametrize("field", [name for name in Statement.model_fields if name != "version"])
def test_nothing_can_be_changed_after_it_was_signed(statement: Statement, field: str) -> None:
    others = OTHERS | {"run_id": "00" * 32, "organiser": ANN, "term": 1}
    found = signed(statement).model_copy(
        update={"statement": statement.model_copy(update={field: others[field]})}
    )
    with pytest.raises(UserError) as error:
        check(found, RUN, "it")
    assert error.value.code in (Code.CERTIFICATE_INVALID, Code.WRONG_RUN)


def test_a_drawing_shows_what_was_signed(statement: Statement) -> None:
    drawing = signed(statement).drawing()
    assert Certificate.parse(drawing, "it").statement == statement
    with pytest.raises(UserError, match="what is drawn is not what was signed"):
        Certificate.parse(drawing.replace(b">15<", b">1500<"), "it")


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\xff", b"[" * 70_000, b'<metadata id="sfnode-certificate">x</metadata>']
)
def test_what_is_no_certificate_is_said_to_be_none(data: bytes) -> None:
    with pytest.raises(UserError) as error:
        Certificate.parse(data, "it")
    assert error.value.code is Code.CERTIFICATE_INVALID


def test_somebody_elses_signature_is_none(statement: Statement) -> None:
    with pytest.raises(UserError, match="signature does not verify"):
        check(signed(statement, by="somebody"), RUN, "it")
    posing = statement.model_copy(update={"organiser": origin_of("somebody").hex()})
    with pytest.raises(UserError, match="not that of the run's organiser"):
        check(signed(posing, by="somebody"), RUN, "it")


def test_an_organiser_who_says_too_much_is_contradicted_by_the_log(
    statement: Statement, feed: ControlFeed
) -> None:
    said = signed(statement)
    check(said, RUN, "it")
    assert certificates.compare(said, RUN, feed, "it")
    for field in ("updates", "measured", "worth", "last_epoch", "seal", "digest", "chain"):
        lie = signed(statement.model_copy(update={field: OTHERS[field]}))
        check(lie, RUN, "it")
        with pytest.raises(UserError) as error:
            certificates.compare(lie, RUN, feed, "it")
        assert error.value.code is Code.CERTIFICATE_INVALID


def test_a_log_that_lacks_decisions_says_nothing_of_them(statement: Statement, feed: ControlFeed) -> None:
    later = signed(statement.model_copy(update={"decisions": feed.stop + 1}))
    assert not certificates.compare(later, RUN, feed, "it")


# -- another organiser -----------------------------------------------------------------------------------


DEPUTIES = ("d1", "d2", "d3")


def succeeded(*voters: int, run: Manifest) -> Succession:
    """A succession to the key of `next`, with these votes."""
    named = Succession(1, 5, bytes(32), origin_of("next"), ())
    message = succession_message(run.run_id, named)
    votes = tuple(Vote(n, signing_key(DEPUTIES[n]).sign(message)) for n in voters)
    return Succession(1, 5, bytes(32), origin_of("next"), votes)


def test_a_key_that_the_deputies_have_named_certifies_as_well(statement: Statement) -> None:
    rules = {"deputies": tuple(origin_of(name).hex() for name in DEPUTIES), "votes": 2}
    run = manifest_of(organised=RUN.organised.model_copy(update=rules))
    said = statement.model_copy(
        update={"run_id": run.run_id.hex(), "term": 1, "organiser": origin_of("next").hex()}
    )
    check(signed(said, "next", succeeded(0, 2, run=run)), run, "it")
    for lacking in (succeeded(1, run=run), succeeded(0, 2, run=RUN), None):
        with pytest.raises(UserError, match="succession"):
            check(signed(said, "next", lacking), run, "it")


# -- pinned: what was issued once verifies for good ------------------------------------------------------


MESSAGE = "6d77ad8e136b1dc80d4f1d2588be0ce127ad43c3d9f7615fdf20b3c5ee988933"
DRAWING = "35538697f944a2da1598b9f28098a43076f6cd39c10932dab248b19e2bd9d72e"


def test_the_bytes_that_are_signed_and_drawn_never_change() -> None:
    said = Statement(
        run_id="11" * 32, run_name="reviews", member="22" * 32, name="Anneli", updates=15, measured=12,
        worth=-2_000_001, first_epoch=0, last_epoch=2, seal=2, digest="33" * 32, decisions=17,
        chain="44" * 32, organiser=origin_of("organiser").hex(), term=0, issued="2026-11-23T12:00:00Z",
    )  # fmt: skip
    assert said.message().startswith(b"sfnode-certificate\xde\x00\x11\xa5chain")
    found = signed(said)
    assert hashlib.sha256(said.message()).hexdigest() == MESSAGE
    assert hashlib.sha256(found.drawing()).hexdigest() == DRAWING
    assert Certificate.parse(found.to_json(), "it") == found
    assert list(json.loads(found.to_json())["statement"]) == list(Statement.model_fields)
