"""Tests of `sfnode publish page`: contents of a page, hidden data, and complete files."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from sfnode.manifest import Manifest
from sfnode.peers import contacts
from sfnode.preparing.manifest import build
from sfnode.publish import site as sites
from sfnode.publish.run_file import RunFile
from sfnode.publish.site import remove_partial, write
from sfnode.schema.metrics import value_in_words
from sfnode.schema.views import Progress, SampleMoment, SampleRow, Samples
from sfnode.store.data_folder import Layout
from sfnode.store.identity import Identity
from sfnode.store.log import UpdateLog
from sfnode.store.run_keys import organiser_key, write_key
from sfprotocol import invitation
from sfprotocol.control_feed import ControlFeed, election_message
from sfprotocol.decisions import Ballot, Elected, StandIn, StandIns, encode
from sfprotocol.events import KeepControl
from sfprotocol.fields import Names
from tests.cli.fake_node import INVITATION, fake_node
from tests.cli.helpers import Run
from tests.protocol.feeds import origin_of, signing_key
from tests.publish.conftest import EPOCHS, NAMES
from tests.publish.helpers import PEER, Page, link_to
from tests.publish.runs import HOSTILE, accuracy, manifest_of, write_run
from tests.store.folders import Folder

RUN = manifest_of()
PROGRESS = Progress(
    known=69, update_budget=99, epoch=3, epochs=9, epoch_known=0, epoch_updates=9,
    updates_per_second=0.5, epoch_seconds_left=None, seconds_left=None,
)  # fmt: skip
ROW = SampleRow(text="<b>a fine film</b>", right="good", base="bad", base_score=0.0)
THEN, NOW = (
    SampleMoment(epoch=epoch, known=9, answers=[said], scores=[score])
    for epoch, said, score in ((0, "?", 0.0), (2, "good", 1.0))
)


@pytest.fixture
def publish(sfnode: Run, folder: Path, tmp_path: Path) -> Run:
    """Return a function that publishes the run in the folder `page`, unless its options say otherwise."""
    return partial(sfnode, "publish", "page", "--out", tmp_path / "page", "--data-dir", folder)


@pytest.fixture
def published(publish: Run, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that publishes the run and returns the folder of its page."""

    def run(*options: object) -> Path:
        publish(*options).done()
        return tmp_path / "page"

    return run


@pytest.fixture
def sampled(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "sampled"))


def run_file(site: Path) -> RunFile:
    return RunFile.parse((site / "run.json").read_bytes(), "run.json")


# -- what is on a page -----------------------------------------------------------------------------------


def test_a_page_has_the_figures_of_the_log(published: Callable[..., Path], sfnode: Run, folder: Path) -> None:
    site = published("--title", "Film reviews", "--public-link", link_to(RUN))
    said, words = run_file(site), Page.of(site / "index.html").words
    assert (said.title, said.members, said.updates) == ("Film reviews", len(NAMES), 69)
    assert said.quality is not None
    assert said.quality.base is not None
    assert [point.epoch for point in said.curve] == list(range(EPOCHS))
    assert "Better by " in words
    assert value_in_words("accuracy", accuracy(EPOCHS - 1, EPOCHS)) in words
    assert "base model 51.2 %" in words
    checkout = json.loads(sfnode("history", "checkout", EPOCHS - 1, "--data-dir", folder, "--json").out)
    assert said.seal is not None
    assert (said.seal.epoch, said.seal.core_digest) == (EPOCHS - 1, checkout["core_digest"])
    assert f"sfnode history checkout {EPOCHS - 1}" in words
    assert checkout["core_digest"] in words
    assert f"sfnode join {link_to(RUN)}" in words
    read_by_join = contacts.read((site / "run.json").read_bytes(), "run.json")
    assert (read_by_join.run_id, read_by_join.addresses) == (RUN.run_id, (PEER,))
    assert Manifest.from_toml(site / "run.toml").run_id == RUN.run_id
    assert "run.toml" in [one["href"] for one in Page.of(site / "index.html").named("a")]


def elect(folder: Path, manifest: Manifest, *members: int) -> None:
    """Add a decision that names these members as stand-ins, and an election of the last of them."""
    run = manifest.parameters()
    assert run.organised
    with UpdateLog.open(Layout(folder).log, run.run_id) as log:
        control = ControlFeed(run.organised)
        control.add(0, log.control())
        first = control.stop
        keys = [StandIn(number, origin_of(f"stand-in {number}")) for number in members]
        control.add(first, [control.sign(encode(StandIns(tuple(keys))), signing_key("organiser").sign)])
        message = election_message(run.run_id, 1, control.stop, control.chain, keys[-1].key)
        signs = [signing_key(f"stand-in {number}").sign for number in members]
        ballots = tuple(Ballot(place, sign(message)) for place, sign in enumerate(signs))
        control.add(control.stop, [control.elect(1, Elected(keys[-1].key, ballots), signs[-1])])
        log.append([], control=[KeepControl(first, tuple(control.entries[first:]))])


def test_a_page_says_who_organises_since_when_and_who_stands_in(
    published: Callable[..., Path], sfnode: Run, tmp_path: Path
) -> None:
    manifest = manifest_of(protocol=4)
    write_run(tmp_path / "node", manifest, NAMES, updates=60, epochs=EPOCHS)
    here = "--data-dir", tmp_path / "node"
    before = " ".join(Page.of(published(*here) / "index.html").words.split())
    assert f"Organiser{origin_of('organiser').hex()[:8]}, named by its manifest, at the start" in before
    assert "Stand-ins" not in before
    elect(tmp_path / "node", manifest, 2, 3)
    after = " ".join(Page.of(published(*here) / "index.html").words.split())
    nameless, zoe = (origin_of(f"member {number}").hex()[:8] for number in (2, 3))
    assert f"OrganiserZoë{zoe}, named by its stand-ins, after round {EPOCHS - 1}" in after
    assert f"Stand-ins{nameless}, Zoë{zoe}: " in after
    shown = Page.of(published(*here, "--hide", zoe) / "index.html").words
    assert "Organiser" in shown
    assert zoe not in shown


def test_members_stand_in_both_orders_and_teams_by_what_they_call_themselves(
    published: Callable[..., Path],
) -> None:
    words = Page.of(published() / "index.html").words
    by_worth, by_number = words.split("By what it has gained")[1].split("By number of updates")
    assert re.findall("Anneli|Zoë", by_worth) == ["Anneli", "Zoë"]
    assert re.findall(r" (\d{2})\b", by_number)[:4] == ["21", "18", "15", "15"]
    assert re.search(r"Owls\s*2", words)


def test_samples_of_a_node_that_does_not_run_are_those_of_its_folder(
    published: Callable[..., Path], sampled: Path
) -> None:
    (sampled / "samples.json").write_text(Samples(rows=[ROW], moments=[THEN, NOW]).model_dump_json())
    here = ("--data-dir", sampled)
    assert "bad good good" not in Page.of(published(*here) / "index.html").words, "they are somebody's texts"
    assert "bad good good" in Page.of(published(*here, "--samples") / "index.html").words


def test_answers_and_rows_show_nothing_but_themselves(published: Callable[..., Path], sampled: Path) -> None:
    raw = "\x1b[2J\x9b2J\u202e\u2066\u200b"
    row, now = ROW.model_copy(update={"text": raw}), NOW.model_copy(update={"answers": [f"good{raw}"]})
    (sampled / "samples.json").write_text(json.dumps(Samples(rows=[row], moments=[THEN, now]).model_dump()))
    text = (published("--samples", "--data-dir", sampled) / "index.html").read_text()
    assert [line for line in text.split("\n") if not line.replace("\u00a0", " ").isprintable()] == []
    assert "good\\u001b[2J" in text


def test_a_running_node_tells_its_contacts_and_its_rate(publish: Run, folder: Path, tmp_path: Path) -> None:
    said = INVITATION.model_copy(update={"link": link_to(RUN), "run_id": RUN.run_id.hex()})
    answers = {
        "GET /invitation": said.model_dump_json(),
        "GET /views/progress": PROGRESS.model_dump_json(),
        "GET /views/samples": Samples(rows=[ROW], moments=[THEN, NOW]).model_dump_json(),
    }
    with fake_node(tmp_path / "node", answers):
        for file in folder.iterdir():
            shutil.copy(file, tmp_path / "node" / file.name)
        ended = publish("--samples", "--data-dir", tmp_path / "node")
    assert ended.err == "reading the log\n"
    found = run_file(tmp_path / "page")
    assert (found.link, found.updates_per_hour) == (said.link, 1800.0)
    words = Page.of(tmp_path / "page" / "index.html").words
    assert "1,800" in words
    assert re.search(r"After round 2\s*Right\s+<b>a fine film</b> bad good good", words)


def test_with_the_address_of_its_page_a_link_names_run_json(published: Callable[..., Path]) -> None:
    site = published("--public-link", link_to(RUN), "--url", "https://example.org/reviews")
    found = run_file(site)
    assert invitation.read(found.link).url == "https://example.org/reviews/run.json"
    page = Page.of(site / "index.html")
    assert "sfnode join https://example.org/reviews/run.json" in page.words
    assert {"property": "og:url", "content": "https://example.org/reviews/"} in page.named("meta")


def test_an_open_run_has_a_page_too(publish: Run, sfnode: Run, tmp_path: Path) -> None:
    with Folder(tmp_path / "open", build({}), "a") as made:
        made.make(5)
    ended = publish("--data-dir", tmp_path / "open")
    assert "open run, 5 updates" in ended.out
    found = run_file(tmp_path / "page")
    assert (found.seal, found.quality, found.members) == (None, None, 1)
    verified = sfnode("verify", "--data-dir", tmp_path / "open").out
    assert f"fingerprint  {found.digest}" in verified


# -- whose word it is ------------------------------------------------------------------------------------


def _organisers_key(folder: Path, passphrase: bytes | None = None) -> None:
    key = Identity._of(signing_key("organiser"))
    write_key(key, organiser_key(RUN.run_id, folder), passphrase)


def test_with_the_organisers_key_the_file_is_signed_and_wins(
    publish: Run, sfnode: Run, tmp_path: Path
) -> None:
    _organisers_key(tmp_path / "keys")
    pages = [tmp_path / name for name in ("follower", "organiser")]
    for path, keys in zip(pages, ("none", "keys"), strict=True):
        ended = publish("--out", path, "--title", path.name, "--keys-dir", tmp_path / keys)
        assert ("signed by the organiser" in ended.out) == (keys == "keys")
    ended = sfnode("publish", "directory", *(path / "run.json" for path in pages), "--out", tmp_path / "all")
    words = Page.of(tmp_path / "all" / "index.html").words
    assert "(2 of 2 runs)" in ended.out
    assert "organiser" in re.findall(r"^\w+$", words, re.MULTILINE)
    assert "follower" not in words


@pytest.mark.parametrize(("said", "signed"), [(b"", False), (b"wrong", False), (b"correct horse", True)])
def test_a_key_with_a_passphrase_signs_with_it_and_else_the_reason_is_told(
    publish: Run, tmp_path: Path, said: bytes, signed: bool
) -> None:
    _organisers_key(tmp_path / "keys", b"correct horse")
    (tmp_path / "phrase").write_bytes(said)
    options = ("--passphrase-file", tmp_path / "phrase") if said else ()
    ended = publish("--keys-dir", tmp_path / "keys", *options).done()
    assert (run_file(tmp_path / "page").signature is not None) == signed
    assert ("run.json is not signed: " in ended.err) != signed


# -- what is not -----------------------------------------------------------------------------------------


def test_a_reward_run_is_told_by_right_answers_before_and_after_and_has_no_worths(
    published: Callable[..., Path], sfnode: Run, tmp_path: Path
) -> None:
    write_run(tmp_path / "node", RUN, NAMES, updates=60, epochs=3, rewards=True)
    rows = [SampleRow(text="3+9=", right="12", base="2", base_score=0.1)]
    moments = [SampleMoment(epoch=2, known=60, answers=["12"], scores=[1.0])]
    (tmp_path / "node" / "samples.json").write_text(Samples(rows=rows, moments=moments).model_dump_json())
    page = (published("--samples", "--data-dir", tmp_path / "node") / "index.html").read_text()
    words = Page(page).words
    assert "right answers (pass@1) after round 2" in words
    assert re.search(r"Mean reward 0\.\d{3} now, 0\.312 before training\.", words)
    assert "3+9= 2 reward 0.10 12 12" in words
    assert page.count('class="good"') >= 2, "the headline, and the answer that is right"
    assert not re.search("worth|nats|loss|accuracy", words, re.IGNORECASE)
    assert "By number of updates" in words
    board = sfnode("leaderboard", "--data-dir", tmp_path / "node").out
    assert board.splitlines()[0] == "members by updates that count"
    assert board.splitlines()[1].split() == ["rank", "who", "key", "count"]
    assert "worth" not in board


def test_hostile_names_are_text(published: Callable[..., Path]) -> None:
    page = Page.of(published("--public-link", link_to(RUN)) / "index.html")
    assert list(page.dangers()) == []
    assert HOSTILE.name in page.words
    assert HOSTILE.team in page.words
    assert "the rate was lowered <b>by half</b>" in page.words


def test_a_page_needs_no_other_file_and_allows_nothing_but_its_style(published: Callable[..., Path]) -> None:
    text = (published() / "index.html").read_text()
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = next(m["content"] for m in Page(text).named("meta") if "http-equiv" in m)
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:")


@pytest.mark.parametrize("digits", [8, 64])
def test_who_is_hidden_is_a_number_and_no_more(
    published: Callable[..., Path], sfnode: Run, folder: Path, digits: int
) -> None:
    found = json.loads(sfnode("leaderboard", "--data-dir", folder, "--json").out)
    key = found["members"][0]["origin"]
    site = published("--hide", key[:digits].upper())
    text = "".join(path.read_text() for path in site.iterdir())
    assert "Anneli" not in text
    assert key[:8] not in text
    assert "not shown" in text
    assert run_file(site).members == len(NAMES)


def test_a_key_that_hides_nobody_is_told(publish: Run) -> None:
    ended = publish("--hide", "0" * 64)
    assert f"--hide {'0' * 64}: nothing of such a key counts" in ended.err
    refused = publish("--hide", "ann")
    assert (refused.status, "8 to 64 hex digits" in refused.err) == (2, True)


def test_a_private_run_keeps_its_link_unless_one_is_given(publish: Run, tmp_path: Path) -> None:
    run = manifest_of(organised=RUN.organised.model_copy(update={"private": True}))
    write_run(tmp_path / "node", run, [Names()], updates=2, epochs=1)
    ended = publish("--data-dir", tmp_path / "node").done()
    assert ended.err == "reading the log\n"
    assert run_file(tmp_path / "page").link == ""
    publish("--data-dir", tmp_path / "node", "--public-link", link_to(run))
    assert run_file(tmp_path / "page").link == link_to(run)


def test_no_folder_of_the_machine_is_on_a_page(publish: Run, tmp_path: Path) -> None:
    model = RUN.model.model_copy(update={"source": "/home/ann/models/opt\u3164\u202e"})
    data = RUN.data.model_copy(update={"train": "/home/ann/rows.tsv", "test": "~/test.csv"})
    run = manifest_of(model=model, data=data)
    write_run(tmp_path / "node", run, [Names()], updates=2, epochs=1)
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "run.toml").write_text(run.to_toml())  # as an earlier version has published it
    ended = publish("--data-dir", tmp_path / "node")
    assert "run.toml is not published: " in ended.err
    text = "".join(file.read_text() for file in (tmp_path / "page").iterdir())
    assert "rows.tsv, tested on test.csv" in text
    assert "/home" not in text
    assert "~/" not in text
    page = Page.of(tmp_path / "page" / "index.html")
    assert "run.toml" not in [one["href"] for one in page.named("a")]
    assert "with every node of the run" in page.words


def test_a_link_to_another_run_is_refused(publish: Run, tmp_path: Path) -> None:
    publish("--public-link", link_to(manifest_of(name="other"))).failed("SF013")
    assert not (tmp_path / "page" / "index.html").exists()


# -- the folder ------------------------------------------------------------------------------------------


def test_a_page_of_something_else_is_left_alone(publish: Run, tmp_path: Path) -> None:
    site = tmp_path / "page"
    site.mkdir()
    (site / "index.html").write_text("mine")
    publish().failed("SF010")
    assert (site / "index.html").read_text() == "mine"


def test_a_file_is_there_as_a_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "page" / "index.html"
    file.parent.mkdir()
    write(file, b"before")

    def full(*_: object) -> None:
        raise OSError(28, "no space")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write(file, b"after")
    assert [(path.name, path.read_bytes()) for path in file.parent.iterdir()] == [("index.html", b"before")]


def test_what_a_killed_process_has_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".index.html.123.partial"
    left.touch()
    remove_partial(tmp_path)
    assert not left.exists()


def test_every_so_often_until_somebody_ends_it(
    publish: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("sfnode.cli.publish.time.sleep", sleep)
    ended = publish("--every", "10m")
    assert (ended.status, ended.out.count("wrote")) == (130, 2)
    assert ended.err.count("The page has no link") == 1, "of a node that has met nobody"
    assert "by invitation" in Page.of(tmp_path / "page" / "index.html").words
    assert all(0 < wait <= 600 for wait in waits)


def test_the_digest_of_a_seal_is_computed_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sfnode.publish.asking import NodeAnswers
    from sfnode.publish.run_file import utc_now

    computed = []
    result = sites.gather.__globals__["Past"].result
    monkeypatch.setattr(
        "sfnode.publish.facts.Past.result", lambda past, epoch: computed.append(epoch) or result(past, epoch)
    )
    site = sites.PublishedFolder(tmp_path / "page", folder)
    with UpdateLog.open(folder / "updates.sqlite", RUN.run_id, read_only=True) as log:
        for _ in range(2):
            site.publish(RUN, log, NodeAnswers(), utc_now())
    assert computed == [EPOCHS - 1]
