"""Tests of `sfnode invite` and `sfnode join LINK`: contents of links, and refusals."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from sfnode.cli.join import _following, _link_unless_run
from sfnode.cli.main import cli
from sfnode.errors import Code
from sfnode.manifest import Manifest
from sfnode.node import contacts_page as kept_contacts
from sfnode.node import startup
from sfnode.peers import contacts, invitations
from sfnode.preparing.manifest import build
from sfnode.settings import Settings
from sfnode.store.data_folder import open_data_dir
from sfprotocol import invitation
from sfprotocol.messages import OLDEST_VERSION, PROTOCOL_VERSION
from tests.cli.helpers import Run
from tests.refusals import refused
from tests.wording import has

LOOPBACK = "/ip4/127.0.0.1/tcp/31337/p2p/QmSelf"
PRIVATE = "/ip4/192.168.1.7/tcp/31337/p2p/QmSelf"
PRIVATE_IPV6 = "/ip6/fd00::7/tcp/31337/p2p/QmSelf"
PUBLIC = "/ip4/9.9.9.9/tcp/31337/p2p/QmSelf"
RELAYED = "/ip4/9.9.9.8/tcp/4/p2p/QmRelay/p2p-circuit/p2p/QmSelf"
OTHERS = [f"/ip4/8.8.8.{number}/tcp/1/p2p/Qm{number}" for number in range(1, 9)]


@pytest.fixture
def run() -> Manifest:
    return build({})


@pytest.fixture
def folder(tmp_path: Path, run: Manifest) -> Path:
    """Make the folder of a node that has met peers."""
    with open_data_dir(tmp_path / "node") as data_dir:
        data_dir.manifest.write_text(run.to_toml())
        kept_contacts.keep(data_dir.contacts, run, OTHERS, "")
    return tmp_path / "node"


# -- which addresses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "others", "told", "reach"),
    [
        ([LOOPBACK, PRIVATE, PUBLIC], [], [PUBLIC, PRIVATE], "internet"),
        ([PUBLIC, RELAYED], OTHERS, [PUBLIC, RELAYED, *OTHERS[:3]], "internet"),
        ([LOOPBACK, PRIVATE], [], [PRIVATE], "network"),
        ([LOOPBACK, PRIVATE, PRIVATE_IPV6], [], [PRIVATE, PRIVATE_IPV6], "network"),
        ([LOOPBACK, PRIVATE, PRIVATE_IPV6, RELAYED], [], [PRIVATE, RELAYED], "internet"),
        ([LOOPBACK], [], [LOOPBACK], "machine"),
        ([LOOPBACK], OTHERS, OTHERS[:3], "internet"),
        ([], ["/ip4/10.0.0.1/tcp/1/p2p/Qm1", *OTHERS[:1]], OTHERS[:1], "internet"),
        (
            [PUBLIC],
            ["/ip4/hello/p2p/Qm1", "/p2p/Qm2", *OTHERS[2:3]],
            [PUBLIC, *OTHERS[2:3], "/ip4/hello/p2p/Qm1"],
            "internet",
        ),
    ],
)
def test_a_link_leads_where_it_helps_most(
    own: list[str], others: list[str], told: list[str], reach: str
) -> None:
    said = invitations.compose(bytes(32), own, others)
    assert list(said.addresses) == told
    assert invitations.reach(said) == reach


def test_a_node_that_nobody_can_reach_and_that_has_met_nobody_cannot_invite() -> None:
    with refused(Code.NO_ADDRESS):
        invitations.compose(bytes(32), [], [])


# -- sfnode invite -----------------------------------------------------------------------------------


def test_a_node_that_does_not_run_invites_to_the_peers_it_remembers(
    folder: Path, run: Manifest, sfnode: Run
) -> None:
    ended = sfnode("invite", "--data-dir", folder).done()
    assert ended.out.startswith("sfnode join sfnode:")
    assert ended.out.count("\n") == 1
    assert "does not run" in ended.err
    said = invitation.read(ended.out.removeprefix("sfnode join "))
    assert said == invitation.invite(OLDEST_VERSION, run.run_id, OTHERS[:3])
    found = json.loads(sfnode("invite", "--data-dir", folder, "--json").out)
    assert (found["run_id"], found["reach"]) == (run.run_id.hex(), "internet")
    assert (invitation.read(found["link"]), found["addresses"]) == (said, OTHERS[:3]), "the same for programs"


def test_the_qr_code_fits_a_terminal_and_is_drawn_when_asked_for(folder: Path, sfnode: Run) -> None:
    *drawn, line = sfnode("invite", "--data-dir", folder, "--qr").out.splitlines()
    assert line.startswith("sfnode join ")
    assert set("".join(drawn)) <= set("█▀▄ ")
    assert len({len(row) for row in drawn if row}) == 1
    assert len(drawn[0]) <= 80


@pytest.mark.parametrize("where", [".", "nowhere"])
def test_a_folder_without_a_run_has_nothing_to_invite_to(where: str, sfnode: Run) -> None:
    sfnode("invite", "--data-dir", where).failed("sfnode: SF043: ")


# -- sfnode join LINK --------------------------------------------------------------------------------


def test_a_link_says_whom_to_ask_and_which_run_it_must_be(run: Manifest) -> None:
    link = invitation.write(invitation.invite(1, run.run_id, OTHERS[:2]))
    fields = _following(link, {"run_id": "", "peers": ("/dns/more/tcp/1/p2p/QmMore",), "threads": 3})
    assert fields == {
        "run_id": run.run_id.hex(),
        "peers": (*OTHERS[:2], "/dns/more/tcp/1/p2p/QmMore"),
        "threads": 3,
    }


def test_a_link_with_a_typo_is_refused(run: Manifest, sfnode: Run) -> None:
    link = invitation.write(invitation.invite(1, run.run_id, OTHERS[:1]))
    for wrong in (link[:-1], link.replace("C", "c", 1), link + link, LOOPBACK, "run.toml", "sfnode:"):
        sfnode("join", wrong).refused("sfnode: SF014: this is not an invitation: ")


def test_a_link_to_a_run_of_a_later_protocol_asks_for_an_upgrade(run: Manifest, sfnode: Run) -> None:
    link = invitation.write(invitation.invite(PROTOCOL_VERSION + 1, run.run_id, OTHERS[:1]))
    ended = sfnode("join", link).failed()
    spoken = f"the run speaks protocol {PROTOCOL_VERSION + 1}; this sfnode speaks {PROTOCOL_VERSION}"
    assert ended.err.startswith(f"sfnode: SF012: {spoken}")
    vectors = Path(__file__).parents[2] / "protocol" / "vectors" / "invitations.json"
    invalid = {vector["name"]: vector["link"] for vector in json.loads(vectors.read_text())["invalid"]}
    assert sfnode("join", invalid["of a later version"]).err.startswith("sfnode: SF012: ")


def test_a_link_to_another_run_than_the_folders_or_the_one_asked_for_is_refused(
    folder: Path, sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = invitation.write(invitation.invite(1, bytes(32), OTHERS[:1]))
    sfnode("join", link, "--set", "run.id=01").failed(
        "sfnode: SF013: the link leads to run 0000000000000000, not to 01"
    )
    settings = Settings(data_dir=folder, **_following(link, {"run_id": "", "peers": ()}))
    with open_data_dir(folder) as data_dir, refused(Code.WRONG_RUN, fix="--data-dir"):
        startup.local_manifest(settings, data_dir)


def test_the_link_may_come_from_the_environment(sfnode: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SFNODE_LINK", "sfnode:nothing")
    assert sfnode("join").err.startswith("sfnode: SF014: ")


@pytest.mark.parametrize("command", ["join", "doctor --link"])
def test_a_link_that_no_other_user_may_see_is_read_from_standard_input(
    command: str, sfnode: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", StringIO("sfnode:nothing\nand more\n"))
    assert sfnode(*command.split(), "-").err.startswith("sfnode: SF014: this is not an invitation: ")
    monkeypatch.setattr(sys, "stdin", StringIO())
    ended = sfnode(*command.split(), "-")
    assert (ended.status, "standard input has no link" in ended.err) == (2, True)


def test_a_shell_that_completes_a_command_line_is_asked_for_no_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", unread := StringIO("sfnode:nothing\n"))
    cli.load("join").make_context("join", ["-"], resilient_parsing=True)
    assert unread.tell() == 0


def test_at_a_terminal_a_link_is_asked_for(sfnode: Run, answers: Callable[..., None]) -> None:
    answers("sfnode:nothing")
    ended = sfnode("join", "-")
    has(ended.err, "Link: ", "SF014: this is not an invitation: ")


def test_at_a_terminal_join_alone_says_what_a_link_is_and_asks_for_one_where_there_is_no_run(
    sfnode: Run, answers: Callable[..., None]
) -> None:
    answers("sfnode:nothing")
    said, _, then = sfnode("join").err.partition("Link: ")
    assert said.startswith("there is no run to join: ")
    assert "`sfnode invite` prints it there" in said
    assert "SF014: this is not an invitation: " in then


def test_join_alone_goes_on_with_the_run_of_its_folder_and_asks_nothing(
    folder: Path, answers: Callable[..., None]
) -> None:
    answers("sfnode:nothing")
    assert _link_unless_run(folder) is None


def test_the_ticket_of_a_link_reaches_the_settings(run: Manifest) -> None:
    said = invitation.invite(OLDEST_VERSION, run.run_id, [PUBLIC])
    link = invitation.write(replace(said, ticket=invitation.Ticket(3, bytes(range(16)))))
    settings = Settings(**_following(link, {"run_id": "", "peers": ()}))
    assert settings.invitation == f"3:{bytes(range(16)).hex()}"


# -- contacts on a web page --------------------------------------------------------------------------

PAGE = "https://run.example/run.json"


def test_a_link_names_relays_first() -> None:
    said = invitations.compose(bytes(32), [PUBLIC], OTHERS, relays={"Qm5", "Qm7", "QmGone"}, url=PAGE)
    assert list(said.addresses) == [OTHERS[4], OTHERS[6], PUBLIC, OTHERS[0]]
    assert said.url == PAGE


def test_the_contacts_are_written_for_a_web_server_and_the_link_names_it(
    folder: Path, run: Manifest, sfnode: Run, tmp_path: Path
) -> None:
    file = tmp_path / "run.json"
    ended = sfnode("invite", "--data-dir", folder, "--contacts-url", PAGE, "--run-json", file).done()
    link = ended.out.removeprefix("sfnode join ")
    said = contacts.read(file.read_bytes(), PAGE)
    assert replace(said, url=PAGE) == invitation.read(link)
    assert json.loads(file.read_text())["link"] == link.strip()
    assert sfnode("invite", "--data-dir", folder, "--contacts-url", "run.json").status == 2


def test_a_page_is_followed_like_a_link_and_a_link_may_name_one(run: Manifest) -> None:
    assert _following(PAGE, {"peers": (), "run_id": ""}) == {"peers": (), "run_id": "", "contacts_url": PAGE}
    link = invitation.write(replace(invitation.invite(1, run.run_id, OTHERS[:1]), url=PAGE))
    assert Settings(**_following(link, {"run_id": "", "peers": ()})).contacts_url == PAGE
