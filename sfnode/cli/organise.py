"""`sfnode organise`: shows how a run is organised, and has the running node sign the organiser's decisions.

Any node of the run answers `status` and `members`. Only the node with the organiser's key can sign decisions.
`sfnode.cli.succession` has the commands that replace the key itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.data_folder import running_node
from sfnode.cli.groups import LazyGroup
from sfnode.cli.options import data_dir_option, dry_run_option, json_option, option
from sfnode.cli.output import echo
from sfnode.control.client import plain
from sfnode.dashboard.formatting import evidence_in_words, health_in_words, nats, term_in_words
from sfnode.errors import Code, UserError
from sfnode.printable import command
from sfnode.schema.metrics import result_in_words

if TYPE_CHECKING:
    from sfnode.control.client import SyncClient
    from sfnode.schema import organising as told
    from sfprotocol.decisions import Decision

PAGE = 1000
"""Number of members that are requested at a time, the maximum in one answer
(`sfnode.schema.views.MAX_PAGE`)."""

KEY_DIGITS = 8
"""Minimum number of a key's first hex digits that name a member. Fewer digits are read as the member's
number, which is below 2^24."""

MAX_U32 = (1 << 32) - 1


COMMANDS = {
    "Prepare": {
        "try-reward": (
            "bases",
            "Score a base model's answers before a reward run.",
            "try-reward --task sums",
        ),
        "make-bases": ("bases", "Make bases to publish for a run.", "make-bases --out bases"),
    },
    "Look": {
        "status": ("organise", "Show epochs, members, budget and health.", "status --json"),
        "members": ("organise", "List the members and who waits.", "members --waiting"),
    },
    "Decide": {
        "invite": ("organise", "Make a link that admits whoever has it.", "invite --uses 5"),
        "admit": ("organise", "Admit a newcomer.", "admit 5e6f7a8b"),
        "revoke": ("organise", "Let nothing of a member count any more.", "revoke 5e6f7a8b"),
        "void": ("organise", "Take back what seals have counted.", "void 7-12"),
        "budget": ("organise", "Change after how many updates the run ends.", "budget 20000"),
        "bases": ("organise", "Publish bases for a coming subspace.", "bases bases/0123.bases"),
        "announce": ("organise", "Tell everybody something.", 'announce "Back on Monday"'),
        "next": ("organise:announce_next", "Announce the run that follows.", "next sfnode:AZMB..."),
        "stand-in": ("organise", "Offer to organise when the organiser is away.", "stand-in"),
        "stand-ins": ("organise", "Name members who stand in for you.", "stand-ins 3 7 12"),
        "end": ("organise", "Complete the run, for good.", "end --dry-run"),
    },
    "Hand the key over": {
        "hand-over": (
            "succession",
            "Propose another key, and bring in what was signed.",
            "hand-over --out next.json",
        ),
        "sign": ("succession", "Vote for a proposal, as a deputy.", "sign next.json --keys-dir deputy"),
    },
}


@click.group(cls=LazyGroup, entries=COMMANDS, path="organise")
def organise() -> None:
    """See and decide what counts in an organised run (docs/organising.md).

    Epochs are labels, counted from 0.
    """


# -- looking -----------------------------------------------------------------------------------------


@click.command
@data_dir_option
@json_option
def status(data_dir: Path, as_json: bool) -> None:
    """Show how the run is organised: epochs, members, budget, health, the organiser of this node."""
    said = running_node(data_dir).organising()
    echo(json.dumps(plain(said), indent=2, ensure_ascii=False) if as_json else "\n".join(_lines(said)))


@click.command
@option("--waiting", is_flag=True, help="Only list newcomers that wait for the owner.")
@data_dir_option
@json_option
def members(waiting: bool, data_dir: Path, as_json: bool) -> None:
    """List the members of the run, and the newcomers that wait to be admitted."""
    node = running_node(data_dir)
    admitted = [] if waiting else _members(node, "")
    asked = node.join_requests()
    join_requests = asked.petitions
    if as_json:
        both = {"members": plain(admitted), "petitions": plain(join_requests), "offers": plain(asked.offers)}
        echo(json.dumps(both, indent=2, ensure_ascii=False))
        return
    for member in admitted:
        came = "" if member.invitation is None else f", by invitation {member.invitation}"
        revoked = "" if member.revoked is None else f", revoked from epoch {member.revoked}"
        stranger = "" if member.vouched else ", stranger"
        unproven = "" if member.proven else ", no credit"
        quota = f"{member.counted} count, quota {member.quota}"
        stands = ", would stand in" if member.number in {one.member for one in asked.offers} else ""
        about = f"{quota}{stranger}{unproven}{came}{revoked}{stands}"
        echo(f"{member.number:>6} {member.origin[:16]}  {about}")
    for join_request in join_requests:
        shows = f", shows invitation {join_request.invitation}" if join_request.invitation else ""
        refused = " (which does not hold)" if shows and not join_request.invited else ""
        echo(f" waits {join_request.origin[:16]}  work of {join_request.work} bits{shows}{refused}")


# -- deciding ----------------------------------------------------------------------------------------


def deciding(make: Callable[..., Decision]) -> Callable[..., None]:
    """Return a command that makes the running node sign the decision that `make` returns, and prints the
    change.

    `make` takes a client of the node and the command's own options. It returns the decision.
    """

    @dry_run_option
    @data_dir_option
    @json_option
    @wraps(make)
    def decide(dry_run: bool, data_dir: Path, as_json: bool, **given: Any) -> None:
        node = running_node(data_dir)
        _tell(_decide(node, make(node, **given), dry_run), as_json)

    return decide


@click.command
@option("--uses", type=click.IntRange(1, MAX_U32), default=1, help="How many may come by the link.")
@dry_run_option
@data_dir_option
@json_option
def invite(uses: int, dry_run: bool, data_dir: Path, as_json: bool) -> None:
    """Publish an invitation and print its link. Everybody who joins by it is admitted without a request to
    you.

    The link is a secret, and everybody on a machine sees command lines. So `sfnode join -` asks for it, or
    reads it from a file. `sfnode organise revoke --invitation NUMBER` revokes it, and everybody who joined by
    it.
    """
    import secrets

    from sfnode.organising.admission import invitation_key
    from sfprotocol import invitation
    from sfprotocol.decisions import Invite

    node = running_node(data_dir)
    said = invitation.read(node.invitation().link)  # first: an invitation needs a link
    secret = secrets.token_bytes(invitation.SECRET_BYTES[0])  # not to be guessed, and short
    key = invitation_key(said.run_id, secret).public_key().public_bytes_raw()
    result = _decide(node, Invite(key, uses), dry_run)
    if not result.signed:
        _tell(result, as_json)
        return
    link = invitation.write(replace(said, ticket=invitation.Ticket(_published(result), secret)))
    if as_json:
        echo(json.dumps({"link": link, "invitation": result.invitation, "uses": uses}, indent=2))
    else:
        echo(f"{command('sfnode', 'join', '-')}\n{link}")
        words = f"Invitation {result.invitation}, for {uses}: give the link to nobody else."
        echo(f"{words} The command asks for it.", err=True)


@click.command
@click.argument("origin", metavar="ORIGIN")
@option(
    "--quota",
    type=click.IntRange(1, MAX_U32),
    help="Updates of it with one epoch label.  [default: the manifest's]",
)
@deciding
def admit(node: SyncClient, origin: str, quota: int | None) -> Decision:
    """Admit a newcomer, or raise a member's quota. ORIGIN is its key, or the first 8 or more digits of the
    key."""
    from sfprotocol.decisions import Admit

    key = bytes.fromhex(_origin(node, origin.lower()))
    return Admit(key, quota or node.organising().quota, 0)


@click.command
@click.argument("member", required=False, metavar="[MEMBER]")
@option(
    "--invitation",
    "number",
    type=click.IntRange(1, (1 << 31) - 1),
    metavar="NUMBER",
    help="Revoke this invitation, and everybody who came by it.",
)
@option(
    "--from-epoch",
    type=click.IntRange(0, MAX_U32),
    metavar="EPOCH",
    help="The first epoch label with which nothing counts any more.  [default: the open epoch]",
)
@deciding
def revoke(node: SyncClient, member: str | None, number: int | None, from_epoch: int | None) -> Decision:
    """Revoke MEMBER: from an epoch on, none of its updates counts. Sealed epochs stay; `void` takes them
    back.

    MEMBER is a number, or 8 or more digits of the key, as `sfnode organise members` shows them.
    """
    from sfprotocol.decisions import Revoke, RevokeInvitation

    if (member is None) == (number is None):
        raise click.UsageError("name a member, or an --invitation")
    epoch = node.organising().open_epoch if from_epoch is None else from_epoch
    if member is not None:
        return Revoke(_member(node, member), epoch)
    return RevokeInvitation((number or 1) - 1, epoch)


@click.command
@click.argument("epochs", metavar="EPOCH[-EPOCH]")
@option(
    "--member",
    "names",
    multiple=True,
    metavar="MEMBER",
    help="Only what this member made; repeat for more.  [default: everybody's]",
)
@deciding
def void(node: SyncClient, epochs: str, names: tuple[str, ...]) -> Decision:
    """Take back the updates that these epochs' seals counted. They cannot be counted again."""
    from sfprotocol.decisions import Void

    form = re.fullmatch(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", epochs, re.ASCII)
    if form is None:
        raise click.BadParameter("say which, for example 7 or 7-12", param_hint="EPOCH")
    return Void(int(form[1]), int(form[2] or form[1]), _chosen(node, names))


@click.command
@click.argument("updates", type=click.IntRange(0, MAX_U32), metavar="UPDATES")
@deciding
def budget(_: SyncClient, updates: int) -> Decision:
    """Change the number of counted updates at which the run is complete."""
    from sfprotocol.decisions import Budget

    return Budget(updates)


@click.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@option(
    "--subspace",
    type=click.IntRange(1, MAX_U32),
    metavar="NUMBER",
    help="The first subspace that they serve.  [default: the next one, which begins after the open epoch]",
)
@dry_run_option
@data_dir_option
@json_option
def bases(file: Path, subspace: int | None, dry_run: bool, data_dir: Path, as_json: bool) -> None:
    """Publish the bases in FILE for a coming subspace and the following ones. Other nodes download them from
    yours.

    Only in a run with published bases (training.bases of `sfnode init`). FILE must have the same number of
    targets of the same shapes.
    """
    from sfnode.manifest import Manifest
    from sfnode.models import bases as files
    from sfnode.store.data_folder import Layout
    from sfnode.store.disk_errors import disk_faults
    from sfprotocol.decisions import Bases

    node, layout = running_node(data_dir), Layout(data_dir)
    first = node.organising().next_subspace if subspace is None else subspace
    decision = Bases(first, bytes.fromhex(files.digest_of(file)))
    result = _decide(node, decision, dry_run=True)
    if not dry_run:  # only a file that others can download from here is published
        manifest = Manifest.from_toml(layout.manifest)
        with disk_faults(layout.bases):
            files.keep(file, layout.bases, manifest.model.parsed_targets(), manifest.basis_columns)
        result = _decide(node, decision, dry_run=False)
    _tell(result, as_json)


@click.command
@option("--yes", is_flag=True, help="Do not ask whether you are sure.")
@dry_run_option
@data_dir_option
@json_option
def end(yes: bool, dry_run: bool, data_dir: Path, as_json: bool) -> None:
    """Complete the run: no more updates are made. This cannot be undone."""
    from sfprotocol.decisions import Finish

    node = running_node(data_dir)
    if not (yes or dry_run):
        click.confirm("End the run for everybody, for good?", abort=True, err=True)
    _tell(_decide(node, Finish(), dry_run), as_json)


@click.command
@click.argument("text", metavar="TEXT")
@deciding
def announce(_: SyncClient, text: str) -> Decision:
    """Send everybody a text of up to 1,000 bytes. It is kept with the run for ever."""
    from sfprotocol.decisions import Announce

    return Announce(text)


@click.command
@click.argument("link", metavar="LINK")
@deciding
def announce_next(_: SyncClient, link: str) -> Decision:
    """Announce that this run continues as the one that LINK names, a fork of it.

    Nodes that were started with `join --follow` finish their work here and continue there. The others show
    the announcement, with the link. It is kept with the run for ever, and so is a secret in the link.
    """
    from sfnode.organising.owner_decisions import announcement
    from sfnode.peers.invitations import read_link
    from sfprotocol.decisions import Announce

    read_link(link)
    return Announce(announcement(link))


@click.command
@data_dir_option
def stand_in(data_dir: Path) -> None:
    """Offer this member as a stand-in for the organiser. The offer lasts until the member is named, also
    after a restart.

    Every decision needs more than half of the stand-ins. They elect one of themselves when the organiser
    falls silent.
    """
    running_node(data_dir).stand_in()
    echo("this node tells everybody that it would stand in; the organiser names it with `stand-ins`")


@click.command
@click.argument("numbers", nargs=-1, type=click.IntRange(min=0), metavar="[MEMBER]...")
@option("--nobody", is_flag=True, help="Let nobody stand in any more.")
@deciding
def stand_ins(node: SyncClient, numbers: tuple[int, ...], nobody: bool) -> Decision:
    """Name the members who stand in for you, by their numbers: two or four that made the offer with
    `stand-in`. They replace earlier ones.

    They and you store every decision: none takes effect before more than half of you have it. So the run
    continues if any one of you fails, even while nobody is awake. Your recovery key outranks all of you.
    """
    from sfprotocol.decisions import StandIn, StandIns

    offers = {offer.member: offer for offer in node.join_requests().offers}
    own = [offer.member for offer in offers.values() if offer.own]
    if nobody == bool(numbers):
        raise click.UsageError("name the members, or say --nobody")
    if not nobody and not own:
        raise UserError(
            Code.ORGANISER_NEEDED,
            "this node does not organise, or is no member yet",
            "Ask the organiser's node.",
        )
    named = sorted({*numbers, *own}) if numbers else []
    if missing := [number for number in named if number not in offers]:
        raise UserError(
            Code.DECISION_REFUSED,
            f"member {missing[0]} has not offered to stand in, or its node has been away for a minute",
            "Have its owner say `sfnode organise stand-in`, and wait half a minute.",
        )
    return StandIns(tuple(StandIn(number, bytes.fromhex(offers[number].key)) for number in named))


# -- asking the node ---------------------------------------------------------------------------------


def _decide(node: SyncClient, decision: Decision, dry_run: bool) -> told.DecisionResult:
    from sfprotocol import decisions
    from sfprotocol.errors import RemoteProtocolError

    try:
        record = decisions.encode(decision)
    except RemoteProtocolError as error:
        raise UserError(
            Code.DECISION_REFUSED, f"this cannot be decided: {error.reason}", "Name something in its bounds."
        ) from error
    return node.decide(record, dry_run=dry_run)


def _tell(result: told.DecisionResult, as_json: bool) -> None:
    """Print the changes of a decision or, after a dry run, those that it would make."""
    if as_json:
        echo(json.dumps(plain(result), indent=2))
        return
    begin = "signed" if result.signed else "not signed, this is a dry run"
    changes = [f"{change.name}: {change.before} -> {change.after}" for change in result.changes]
    echo("\n  ".join([f"{begin}; it changes:", *changes] if changes else [f"{begin}; no number changes"]))


def _published(result: told.DecisionResult) -> int:
    """Return the number of the invitation that was signed."""
    if result.invitation is None:
        raise UserError(
            Code.DECISION_REFUSED,
            "the node has signed the invitation, and does not know its number",
            "Make another one; `sfnode organise status` counts them.",
        )
    return result.invitation


def _members(node: SyncClient, find: str) -> list[told.MemberStatus]:
    """Return all members whose key begins with `find`, requested page by page."""
    found: list[told.MemberStatus] = []
    while page := node.members(offset=len(found), limit=PAGE, find=find).members:
        found += page
    return found


def _member(node: SyncClient, name: str) -> int:
    """Return the number of the member that `name` names, by its number or by the first digits of its key."""
    if len(name) < KEY_DIGITS and name.isdecimal():
        return int(name)
    digits = name.lower()
    _check_digits(digits)
    return int(_only(digits, [str(member.number) for member in _members(node, digits)], "members"))


def _chosen(node: SyncClient, names: Iterable[str]) -> tuple[int, ...]:
    """Return the numbers of the members that `names` name, in ascending order and without repetition."""
    return tuple(sorted({_member(node, name) for name in names}))


def _origin(node: SyncClient, digits: str) -> str:
    """Return the key of the newcomer or member that begins with these digits. A whole key is returned
    unchanged."""
    _check_digits(digits)
    if len(digits) == 64:
        return digits
    waiting = {one.origin for one in node.join_requests().petitions if one.origin.startswith(digits)}
    known = {one.origin for one in _members(node, digits)}
    return _only(digits, sorted(waiting | known), "newcomers and members")


def _check_digits(digits: str) -> None:
    if not re.fullmatch(f"[0-9a-f]{{{KEY_DIGITS},64}}", digits):
        raise UserError(
            Code.BAD_OPTION,
            f"{digits!r} names nobody: a key is given by {KEY_DIGITS} or more of its hex digits",
            "`sfnode organise members` shows them.",
        )


def _only(digits: str, found: list[str], among: str) -> str:
    if len(found) != 1:
        raise UserError(
            Code.BAD_OPTION,
            f"the keys of {len(found)} {among} begin with {digits}",
            "Give more digits." if found else "`sfnode organise members` shows them.",
        )
    return found[0]


def _lines(s: told.OrganiserStatus) -> list[str]:
    here = "elsewhere" if s.organiser is None else f"here, {s.organiser}"
    lines = [
        f"run         {s.run_name} ({s.run_id[:16]}){', complete' if s.complete else ''}",
        f"organiser   {here}; term {term_in_words(s.term)}{_since(s)}, {s.decisions} decisions",
        f"epochs      {s.open_epoch} is open, {s.sealed} are sealed",
        f"updates     {s.counted} of {s.budget} count",
        f"members     {s.members}, {s.invitations} invitations"
        + ("" if s.petitions is None else f", {s.petitions} newcomers wait"),
        f"health      {health_in_words(s.health)}",
    ]
    lines += [f"stands in   member {one.member} ({one.key[:16]}){_told_of(one)}" for one in s.stand_ins]
    if s.waits:
        lines.append(f"waits       {s.waits}")
    if s.incomplete:
        lines.append("incomplete  decisions are lacking here that the last succession keeps")
    if s.frozen:
        lines.append(
            "FROZEN      the organiser's key has signed two sequences, or half of those who stand in have"
            " voted twice: the deputies have to hand over"
        )
    if s.unsupported:
        lines.append(
            "UNKNOWN     a decision is of a later version, so what counts is not known: upgrade sfnode"
        )
    if s.behind:
        lines.append(f"missing     {s.behind} updates that count are not here yet")
    lines += [f"bases       {one.digest[:16]} from subspace {one.subspace} on" for one in s.bases]
    lines += [f"evaluation  {result_in_words(one)}, {one.count} rows" for one in s.evaluations[-3:]]
    lines += [f"skipped     {_doubted(one)}" for one in s.doubted]
    return lines + [f"announced   {text}" for text in s.announcements]


def _since(s: told.OrganiserStatus) -> str:
    return "" if s.term_since is None else f" since {datetime.fromtimestamp(s.term_since):%Y-%m-%d %H:%M}"


def _told_of(one: told.StandInStatus) -> str:
    if one.lied:
        return ", OUT: it has voted twice in one election. Name others: `sfnode organise stand-ins`"
    return (", organises" if one.organises else "") + ("" if one.here else ", away")


def _doubted(one: told.EvidenceStatus) -> str:
    """Describe a member whose work seals skip because of the evidence about it, and say what the organiser
    can do."""
    measured = f"loss lowered by {nats(one.worth)} with {one.updates} measured updates"
    about = f"member {one.member} ({one.origin[:16]}): {measured}"
    if one.harmful_since is not None:
        return f"{about}; does harm since epoch {one.harmful_since}: revoked, or `sfnode organise revoke` it"
    at_last = "counts" if one.counts_at_last else f"does not count below {one.bound:.2f}, or as an outlier,"
    return f"{about}, {evidence_in_words(one)}; {at_last} when the run ends"
