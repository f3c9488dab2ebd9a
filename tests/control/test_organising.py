"""Tests of the control API of an organised run, with and without the organiser's key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sfnode.control.client import Client
from sfnode.control.server import serve
from sfnode.errors import Code, UserError
from sfnode.organising.admission import work
from sfnode.organising.organiser import OrganiserState
from sfnode.organising.reporting.alarms import Restarted
from sfnode.schema.node_state import RunHealth
from sfnode.schema.organising import DecisionResult
from sfprotocol import decisions, messages, wire_codec
from sfprotocol.control_feed import succession_message
from sfprotocol.decisions import Admit, Announce, Budget, Evaluated, Finish, Invite, Revoke, Seal
from sfprotocol.events import LinkUp, Received
from tests.control.organised_node import BEGAN, DEPUTIES, QUOTA, OrganisedNode
from tests.protocol.feeds import origin_of, signing_key

A, B = origin_of("a"), origin_of("b")


@pytest.fixture
def node() -> OrganisedNode:
    return OrganisedNode()


@pytest.fixture
async def client(node: OrganisedNode, tmp_path: Path) -> AsyncIterator[Client]:
    close = await serve(node.api, tmp_path / "control.sock")
    yield Client(tmp_path / "control.sock")
    await close()


async def refused(call: object) -> UserError:
    with pytest.raises(UserError) as refusal:
        await call  # type: ignore[misc]
    return refusal.value


def changes(result: DecisionResult) -> list[tuple[str, int, int]]:
    return [(change.name, change.before, change.after) for change in result.changes]


# -- status ------------------------------------------------------------------------------------------


async def test_any_node_tells_how_the_run_is_organised(node: OrganisedNode, client: Client) -> None:
    node.api.organising = None
    node.decide(Admit(A, QUOTA, 0), Invite(B, 5), Budget(99), Announce("we move on Monday"))
    said = await client.organising()
    assert said.run_id == node.manifest.run_id.hex()
    assert (said.term, said.decisions, said.frozen, said.unsupported) == (0, 4, False, False)
    assert said.term_since == BEGAN
    assert (said.open_epoch, said.sealed, said.counted, said.budget) == (0, 0, 0, 99)
    assert (said.members, said.invitations, said.quota, said.behind) == (1, 1, QUOTA, 0)
    assert (said.organiser, said.petitions) == (None, None)
    assert said.announcements == ["we move on Monday"]
    assert not said.complete


async def test_the_node_with_the_key_tells_the_state_of_its_organiser(
    node: OrganisedNode, client: Client
) -> None:
    node.organising.state = OrganiserState.RESTARTED
    said = await client.organising()
    assert (said.organiser, said.petitions) == ("restarted", 0)


async def test_health_follows_from_the_published_evaluations(node: OrganisedNode, client: Client) -> None:
    assert (await client.organising()).health.latest is None
    node.decide(Evaluated(0, "base accuracy", 50_000_000, 45_000_000, 55_000_000, 700_000, 100))
    node.decide(Evaluated(0, "accuracy", 80_000_000, 75_000_000, 85_000_000, 400_000, 100))
    fine = (await client.organising()).health
    assert fine.verdict is RunHealth.BETTER
    assert (fine.latest.value, fine.base.value) == (80.0, 50.0)
    node.decide(Evaluated(1, "accuracy", 60_000_000, 55_000_000, 65_000_000, 600_000, 100))
    said = await client.organising()
    assert said.health.verdict is RunHealth.WORSE
    assert [(one.epoch, one.high) for one in said.health.worse_than] == [(0, 85.0)]
    assert {one.metric for one in said.evaluations} == {"accuracy"}
    assert [(one.epoch, one.base) for one in said.evaluations] == [(0, True), (0, False), (1, False)]


async def test_an_open_run_has_nothing_of_this(node: OrganisedNode, client: Client) -> None:
    node.api.reports = None
    for call in (
        client.organising(),
        client.members(),
        client.join_requests(),
        client.decide(b"\x92\x12\x90"),
    ):
        assert (await refused(call)).code == Code.RUN_IS_OPEN


# -- members and join requests ---------------------------------------------------------------------------


async def test_members_come_page_by_page_and_by_their_keys(node: OrganisedNode, client: Client) -> None:
    node.decide(Invite(bytes(32), 1), Admit(A, 7, 1), Admit(B, 8, 0), Revoke(1, 3))
    first, second = (await client.members()).members
    assert (first.number, first.origin, first.quota) == (0, A.hex(), 7)
    assert (first.invitation, first.revoked) == (1, None)
    assert (second.number, second.origin, second.invitation, second.revoked) == (1, B.hex(), None, 3)
    page = await client.members(offset=1, limit=1)
    assert (page.total, page.offset, page.members) == (2, 1, [second])
    assert (await client.members(find=B.hex()[:9])).members == [second]


async def test_join_requests_tell_what_speaks_for_a_newcomer(node: OrganisedNode, client: Client) -> None:
    node.organising.waiting.append(messages.JoinRequest(B, 77, 1, bytes(64), bytes(64)))
    (join_request,) = (await client.join_requests()).petitions
    assert (join_request.origin, join_request.invitation, join_request.invited) == (B.hex(), 1, False)
    assert join_request.work == work(node.manifest.run_id, B, 77)
    node.api.organising = None
    assert (await client.join_requests()).petitions == []


# -- decisions ---------------------------------------------------------------------------------------


async def test_a_wish_that_holds_is_signed(node: OrganisedNode, client: Client) -> None:
    result = await client.decide(decisions.encode(Admit(B, 9, 0)))
    assert result.signed
    assert changes(result) == [("members", 0, 1), ("quotas", 0, 9)]
    assert [member.origin for member in node.organised.run_state.members] == [B]


async def test_who_publishes_an_invitation_learns_its_number(client: Client) -> None:
    for number in (1, 2):
        result = await client.decide(decisions.encode(Invite(bytes([number]) * 32, 1)))
        assert result.invitation == number


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize("wish", [Revoke(5, 0), Seal(0, (), (), bytes(32), 1, ())], ids=["no-op", "seal"])
async def test_a_wish_that_changes_nothing_is_refused_with_the_reason(
    wish: decisions.Decision, dry_run: bool, node: OrganisedNode, client: Client
) -> None:
    refusal = await refused(client.decide(decisions.encode(wish), dry_run=dry_run))
    assert refusal.code == Code.DECISION_REFUSED
    assert node.organised.run_state.decisions == 0


async def test_what_is_no_decision_is_refused(client: Client) -> None:
    assert (await refused(client.decide(b"\x00"))).code == Code.DECISION_REFUSED


async def test_only_a_node_whose_organiser_signs_takes_wishes(node: OrganisedNode, client: Client) -> None:
    wish = decisions.encode(Finish())
    node.organising.restarted = Restarted(8.0, more=0, linked=True, signed_here=False)
    assert (await refused(client.decide(wish))).code == Code.ORGANISER_NEEDED
    node.api.organising = None
    assert (await refused(client.decide(wish))).code == Code.ORGANISER_NEEDED


# -- successions -------------------------------------------------------------------------------------


async def test_a_proposal_with_enough_votes_takes_the_run_over(node: OrganisedNode, client: Client) -> None:
    node.decide(Budget(99), Budget(100))
    said = await client.propose(B.hex(), kept=1)
    assert (said.term, said.kept, said.needed) == (messages.ELECTED_TERMS, 1, 2)
    assert said.chain == node.organised.control.feed.chains[1].hex()
    assert said.deputies == [origin_of(name).hex() for name in DEPUTIES]

    succession = messages.Succession(messages.ELECTED_TERMS, 1, bytes.fromhex(said.chain), B, ())
    message = succession_message(node.manifest.run_id, succession)
    votes = [
        {"deputy": number, "signature": signing_key(name).sign(message).hex()}
        for number, name in enumerate(DEPUTIES)
    ]
    forged = {"deputy": 1, "signature": votes[0]["signature"]}
    few = await refused(client.succeed(said.model_dump() | {"votes": [votes[0], forged]}))
    assert few.code == Code.SUCCESSION_REFUSED
    assert "1 of its votes hold" in few.what
    assert node.organised.control.feed.term == 0

    await client.succeed(said.model_dump() | {"votes": [votes[0], votes[2]]})
    assert (node.organised.control.feed.term, node.organised.run_state.budget) == (messages.ELECTED_TERMS, 99)
    assert [line for line in node.api.reports.news(1.0) if "another organiser goes on" in line]
    assert not node.api.reports.news(2.0)
    assert (await client.propose(B.hex())).term == 2 * messages.ELECTED_TERMS


async def test_a_succession_of_another_run_is_refused(node: OrganisedNode, client: Client) -> None:
    said = (await client.propose(B.hex(), kept=0)).model_dump() | {"run_id": "00" * 32}
    assert (await refused(client.succeed(said))).code == Code.WRONG_RUN


async def test_a_node_to_which_no_decision_has_come_proposes_to_keep_none_only_if_told_so(
    client: Client,
) -> None:
    refusal = await refused(client.propose(B.hex()))
    assert refusal.code == Code.SUCCESSION_REFUSED
    assert "0 decisions are here" in refusal.what
    assert (await client.propose(B.hex(), kept=0)).kept == 0


async def test_who_claims_decisions_that_do_not_come_is_named_and_can_be_passed_over(
    node: OrganisedNode, client: Client
) -> None:
    """A neighbour may announce decisions that nobody has. The owner then says how many stay."""
    node.decide(Finish())
    node.post(LinkUp(9, "QmLiar"))
    said: tuple[messages.Message, ...] = (
        messages.Hello(messages.PROTOCOL_VERSION, node.manifest.run_id, 0, 0),
        messages.ControlHead(0, 1000, bytes(32)),
    )
    for message in said:
        node.post(Received(9, wire_codec.encode(message, node.api.machine.run.scalar_bytes)))
    refusal = await refused(client.propose(B.hex()))
    assert refusal.what.endswith(": 1 decisions are here, and the neighbour QmLiar says that it has 1000")
    assert "--kept" in refusal.fix
    assert (await client.propose(B.hex(), kept=1)).kept == 1


async def test_nobody_keeps_more_decisions_than_there_are(client: Client) -> None:
    assert (await refused(client.propose(B.hex(), kept=1))).code == Code.SUCCESSION_REFUSED
