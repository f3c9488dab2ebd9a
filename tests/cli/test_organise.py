"""Tests of `sfnode organise`: views, decisions, dry runs, and changes of the organiser's key."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from sfnode.models import bases
from sfnode.organising.admission import invitation_key
from sfnode.organising.organiser import OrganiserState
from sfnode.organising.reporting.alarms import Restarted
from sfnode.preparing.manifest import build
from sfnode.store.data_folder import Layout
from sfnode.store.identity import Identity
from sfprotocol import invitation
from sfprotocol.decisions import Admit, Announce, Evaluated, Invite
from sfprotocol.messages import ELECTED_TERMS, OLDEST_VERSION, JoinRequest
from tests.cli.helpers import Ended, Run, bases_file
from tests.control.organised_node import BEGAN, DEPUTIES, QUOTA, OrganisedNode
from tests.protocol.feeds import origin_of, signing_key

A, B = origin_of("a"), origin_of("b")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[OrganisedNode]:
    """Serve a node with the organiser's key in the folder `node`."""
    made = OrganisedNode()
    with made.served(tmp_path / "node"):
        yield made


@pytest.fixture
def organise(node: OrganisedNode, tmp_path: Path, sfnode: Run) -> Run:
    def run(command: str, *arguments: object) -> Ended:
        return sfnode("organise", command, "--data-dir", tmp_path / "node", *arguments)

    return run


# -- looking -----------------------------------------------------------------------------------------


def test_status_shows_what_an_owner_has_to_know(node: OrganisedNode, organise: Run) -> None:
    assert "health      nothing was evaluated yet" in organise("status").out
    node.decide(Admit(A, QUOTA, 0), Announce("on Monday"))
    node.decide(Evaluated(0, "accuracy", 80_000_000, 75_000_000, 85_000_000, 400_000, 100))
    node.decide(Evaluated(1, "accuracy", 60_000_000, 55_000_000, 65_000_000, 600_000, 100))
    said = organise("status").done()
    since = f"{datetime.fromtimestamp(BEGAN):%Y-%m-%d %H:%M}"
    assert f"organiser   here, organising; term 0 since {since}, 4 decisions" in said.out
    assert "members     1, 0 invitations, 0 newcomers wait" in said.out
    assert (
        "health      WORSE: accuracy 6000.0 % (5500.0-6500.0 %) after round 1, best 8000.0 % after round 0"
        in said.out
    )
    assert "announced   on Monday" in said.out
    assert "waits" not in said.out
    node.organising.restarted = Restarted(8.0, more=7, linked=True, signed_here=False)
    assert "waits       the organiser here signs nothing yet: a neighbour says" in organise("status").out
    assert json.loads(organise("status", "--json").out)["health"]["verdict"] == "worse"


def test_members_are_listed_with_those_who_wait(node: OrganisedNode, organise: Run) -> None:
    node.decide(Admit(A, QUOTA, 0))
    node.organising.waiting.append(JoinRequest(B, 0, 3, bytes(64), bytes(64)))
    said = organise("members").out.splitlines()
    assert said == [
        f"     0 {A.hex()[:16]}  0 count, quota {QUOTA}",
        f" waits {B.hex()[:16]}  work of 0 bits, shows invitation 3 (which does not hold)",
    ]
    assert organise("members", "--waiting").out.splitlines() == said[1:]
    both = json.loads(organise("members", "--json").out)
    assert [one["origin"] for one in (*both["members"], *both["petitions"])] == [A.hex(), B.hex()]


# -- deciding ----------------------------------------------------------------------------------------

LINK = invitation.write(invitation.invite(OLDEST_VERSION, bytes(32), ["/ip4/192.0.2.1/tcp/1/p2p/Qm"]))
WISHES = [
    (["invite"], "invitations: 1 -> 2"),
    (["admit", B.hex()], "members: 1 -> 2"),
    (["revoke", "0"], "revoked members: 0 -> 1"),
    (["revoke", A.hex()[:8]], "revoked members: 0 -> 1"),
    (["revoke", "--invitation", "1"], "revoked invitations: 0 -> 1"),
    (["budget", "99"], "update budget: 6400 -> 99"),
    (["end", "--yes"], "run complete: 0 -> 1"),
    (["announce", "hello"], "no number changes"),
    (["next", LINK], "no number changes"),
]


@pytest.mark.parametrize(("wish", "says"), WISHES, ids=lambda value: str(value[0]))
def test_a_dry_run_says_what_changes_and_the_same_without_it_changes_that(
    wish: list[str], says: str, node: OrganisedNode, organise: Run
) -> None:
    node.decide(Admit(A, QUOTA, 0), Invite(bytes(32), 1))
    says = says.replace("6400", str(node.organised.run_state.budget))
    dry = organise(*wish, "--dry-run")
    assert (dry.status, dry.err) == (0, "")
    assert dry.out.startswith("not signed, this is a dry run; ")
    assert says in dry.out
    assert node.organised.run_state.decisions == 2
    signed = organise(*wish).done()
    assert wish == ["invite"] or says in signed.out
    assert node.organised.run_state.decisions == 3


def test_an_invitation_is_a_link_with_the_secret_of_the_key_that_was_published(
    node: OrganisedNode, organise: Run
) -> None:
    ended = organise("invite", "--uses", "5")
    start, link = ended.out.splitlines()
    assert start == "sfnode join -", "the link is a secret, and everybody on a machine sees command lines"
    said = invitation.read(link)
    assert said.ticket is not None
    assert (said.run_id, said.ticket.invitation) == (node.manifest.run_id, 1)
    (published,) = node.organised.run_state.invitations
    key = invitation_key(node.manifest.run_id, said.ticket.secret).public_key().public_bytes_raw()
    assert (published.key, published.uses) == (key, 5)
    assert said.ticket.secret.hex() not in ended.err


def test_a_newcomer_that_waits_is_admitted_by_the_first_digits_of_its_key(
    node: OrganisedNode, organise: Run
) -> None:
    node.organising.waiting.append(JoinRequest(B, 0, 0, b"", bytes(64)))
    assert organise("admit", B.hex()[:8]).status == 0
    (member,) = node.organised.run_state.members
    assert (member.origin, node.organised.run_state.quotas.own(0)) == (B, QUOTA)
    assert organise("admit", B.hex(), "--quota", "77").status == 0
    assert node.organised.run_state.quotas.own(0) == 77


@pytest.mark.parametrize(
    ("wish", "number", "says"),
    [
        (["admit", "00000000"], "SF010", "the keys of 0 newcomers and members begin with 00000000"),
        (["admit", "hello"], "SF010", "8 or more of its hex digits"),
        (["revoke", "7"], "SF066", "no such member"),
        (["void", "0-3"], "SF066", "nothing counts by the seals of these epochs"),
        (["void", f"70000-{2**32 - 1}"], "SF066", "nothing counts by the seals of these epochs"),
        (["void", str(2**32)], "SF066", "not an unsigned integer of 32 bits"),
        (["announce", "x" * 1001], "SF066", "1000 bytes at most"),
        (["announce", "\x1b[31mred"], "SF066", "that can be seen"),
        (["next", "sfnode:abc"], "SF014", "not an invitation"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_makes_no_sense_is_refused(wish: list[str], number: str, says: str, organise: Run) -> None:
    organise(*wish).refused(f"sfnode: {number}: ", says)


def test_only_the_node_with_the_key_is_told_what_to_decide(node: OrganisedNode, organise: Run) -> None:
    node.api.organising = None
    assert organise("end", "--yes").err.startswith("sfnode: SF065: ")
    assert organise("end", "--dry-run").status == 0


@pytest.mark.parametrize("answer", ["", "\n", "n\n"], ids=repr)
def test_nobody_ends_a_run_by_a_slip(
    answer: str, node: OrganisedNode, organise: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    assert organise("end").status == 130
    assert not node.organised.run_state.finished


# -- handing over ------------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """Make a folder with the key of each deputy, and the key of a stranger."""
    folder = tmp_path / "deputies"
    folder.mkdir()
    for name in (*DEPUTIES, "stranger"):
        Identity._of(signing_key(name)).write(folder / name)
    return folder


def test_a_run_passes_to_another_key_by_a_file_that_deputies_sign(
    node: OrganisedNode, organise: Run, sfnode: Run, keys: Path, tmp_path: Path
) -> None:
    file, keys_dir = tmp_path / "succession.json", tmp_path / "keys"
    organise("hand-over", "--out", file, "--keys-dir", keys_dir, "--kept", 0).done()
    assert organise("hand-over", "--submit", file).err.startswith("sfnode: SF067: ")
    first = sfnode("organise", "sign", file, "--deputy-key", keys / "d3")
    assert "signed as deputy 2; 1 more votes are needed" in first.out
    again = sfnode("organise", "sign", file, "--deputy-key", keys / "d3")
    assert "1 more votes are needed" in again.out
    assert "that is enough" in sfnode("organise", "sign", file, "--deputy-key", keys / "d1").out
    assert organise("hand-over", "--submit", file, "--dry-run").status == 0
    assert node.organised.control.feed.term == 0
    assert organise("hand-over", "--submit", file).status == 0
    feed = node.organised.control.feed
    assert feed.term == ELECTED_TERMS
    assert feed.key == Identity.read(keys_dir / node.manifest.run_id.hex()).public


def test_a_dry_run_of_a_hand_over_or_a_vote_writes_nothing(
    organise: Run, sfnode: Run, keys: Path, tmp_path: Path
) -> None:
    file = tmp_path / "succession.json"
    organise("hand-over", "--out", file, "--keys-dir", tmp_path / "keys", "--kept", 0, "--dry-run").done()
    assert not file.exists()
    assert not (tmp_path / "keys").exists()
    assert organise("hand-over", "--out", file, "--key", B.hex(), "--kept", 0).status == 0
    before = file.read_text()
    assert sfnode("organise", "sign", file, "--deputy-key", keys / "d1", "--dry-run").status == 0
    assert file.read_text() == before


def test_only_deputies_sign_and_no_key_and_no_file_is_overwritten(
    node: OrganisedNode, organise: Run, sfnode: Run, keys: Path, tmp_path: Path
) -> None:
    file = tmp_path / "succession.json"
    assert organise("hand-over", "--out", file, "--key", B.hex(), "--kept", 0).status == 0
    assert sfnode("organise", "sign", file, "--deputy-key", keys / "stranger").err.startswith("sfnode: SF045")
    assert sfnode("organise", "sign", file).err.startswith("sfnode: SF044")
    assert "exists already" in organise("hand-over", "--out", file, "--key", B.hex(), "--kept", 0).err
    key = tmp_path / "keys" / node.manifest.run_id.hex()
    key.parent.mkdir()
    key.write_text("ours")
    other = "hand-over", "--out", tmp_path / "b", "--kept", 0
    assert "would take its place" in organise(*other, "--keys-dir", key.parent).err
    file.write_text("{}")
    assert sfnode("organise", "sign", file).err.startswith("sfnode: SF067")


# -- who stands in -----------------------------------------------------------------------------------


def test_an_owner_names_those_who_have_offered_to_stand_in(node: OrganisedNode, organise: Run) -> None:
    node.decide(Admit(A, QUOTA, 0), Admit(B, QUOTA, 0))
    node.organising.offered = {0: node.organised.control.key, 1: B}
    assert "would stand in" in organise("members").out
    assert "member 7 has not offered" in organise("stand-ins", 7).err
    assert organise("stand-ins", 1, "--dry-run").status == 0
    assert not node.organised.control.feed.stand_ins
    assert organise("stand-ins", 1).status == 0
    assert node.organised.control.feed.standing == {node.organised.control.key: 0, B: 1}
    said = organise("status").out
    assert f"stands in   member 0 ({node.organised.control.key.hex()[:16]}), organises" in said
    assert f"stands in   member 1 ({B.hex()[:16]}), away" in said


def test_nobody_stands_in_in_a_run_of_an_earlier_protocol(tmp_path: Path, sfnode: Run) -> None:
    node = OrganisedNode(OLDEST_VERSION)
    node.decide(Admit(A, QUOTA, 0), Admit(B, QUOTA, 0))
    node.organising.offered = {0: node.organised.control.key, 1: B}
    with node.served(tmp_path / "old"):
        refused = sfnode("organise", "stand-ins", 1, "--data-dir", tmp_path / "old")
    assert "from protocol 4 on" in refused.err
    assert not node.organised.control.feed.standing


def test_only_who_stands_in_is_handed_the_run_to(node: OrganisedNode, organise: Run) -> None:
    node.decide(Admit(A, QUOTA, 0), Admit(B, QUOTA, 0))
    assert "member 1 does not stand in" in organise("hand-over", "--to", 1).err
    node.organising.offered = {0: node.organised.control.key, 1: B}
    assert organise("stand-ins", 1).status == 0
    assert organise("hand-over", "--to", 1).status == 0
    assert node.organising.handed_over == [B]


def test_a_node_that_does_not_organise_names_nobody_and_says_who_would(
    node: OrganisedNode, organise: Run
) -> None:
    node.decide(Admit(A, QUOTA, 0))
    node.organising.state = OrganiserState.STANDING_BY
    node.organising.offered = {0: node.organised.control.key}
    assert "another one organises" in organise("stand-ins", 0).err
    node.organising.cut_off = True
    assert "do not answer" in organise("stand-ins", 0).err


# -- published bases ---------------------------------------------------------------------------------


def test_bases_are_published_for_the_next_subspace_or_a_later_one(sfnode: Run, tmp_path: Path) -> None:
    rank = build({}).training.rank
    first, second = (bases_file(tmp_path, rank, fill) for fill in (1, 2))
    folder = tmp_path / "node"
    node = OrganisedNode(basis="published", bases=bases.digest_of(first))
    publish = partial(sfnode, "organise", "bases", "--data-dir", folder)
    with node.served(folder):
        Layout(folder).manifest.write_text(node.manifest.to_toml())
        dry = publish(second, "--dry-run")
        assert "subspaces with bases of their own: 1 -> 2" in dry.out
        assert len(node.organised.run_state.bases) == 1
        assert publish(second).status == 0
        assert publish(first, "--subspace", 7).status == 0
        digests = [bases.digest_of(file) for file in (first, second)]
        said = [(one.subspace, one.digest.hex()) for one in node.organised.run_state.bases]
        assert said == [(0, digests[0]), (1, digests[1]), (7, digests[0])]
        assert bases.digest_of(bases.path_in(Layout(folder).bases, digests[1])) == digests[1]
        status = sfnode("organise", "status", "--data-dir", folder).out
        assert f"bases       {digests[1][:16]} from subspace 1 on" in status
        assert publish(second, "--subspace", 70_000).err.startswith("sfnode: SF066: ")
        assert publish(second, "--subspace", 1 << 32).status == 2
        wrong = publish(bases_file(tmp_path, 2 * rank))
        assert (wrong.status, wrong.err[:15]) == (1, "sfnode: SF082: ")


def test_bases_of_a_run_that_has_random_ones_are_refused(
    node: OrganisedNode, organise: Run, tmp_path: Path
) -> None:
    Layout(tmp_path / "node").manifest.write_text(node.manifest.to_toml())
    organise("bases", bases_file(tmp_path, node.manifest.training.rank)).failed(
        "this would change nothing: bases of this run are random"
    )
    assert not Layout(tmp_path / "node").bases.exists()
