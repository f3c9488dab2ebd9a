"""`sfnode organise hand-over` and `sign`: changes of the organiser's key.

A succession is a file that names the next key. A running node proposes it. Deputies add their votes on the
machines where their keys are. Then any node of the run submits the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sfnode.cli.data_folder import running_node
from sfnode.cli.options import data_dir_option, dry_run_option, option, out_option, require_new_file
from sfnode.cli.output import echo
from sfnode.cli.passphrases import keys_dir_option, passphrase_file_option, unlocked
from sfnode.control.client import plain
from sfnode.dashboard.formatting import term_in_words
from sfnode.errors import Code, UserError

if TYPE_CHECKING:
    from sfnode.schema.organising import SuccessionFile
    from sfnode.store.identity import Identity
    from sfprotocol.messages import Authority, Succession

MAX_FILE = 65_536
"""Maximum size of a succession file, in bytes. With the keys and votes of 64 deputies a file has 20,000
bytes."""


@click.command
@out_option("FILE", "Where to write the proposal.", required=False)
@option(
    "--submit",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Bring this proposal, which the deputies have signed, to the run.",
)
@option("--to", type=click.IntRange(min=0), metavar="MEMBER", help="Let this stand-in organise at once.")
@option("--key", metavar="HEX", help="Public key of the next organiser.  [default: a new one, in --keys-dir]")
@option(
    "--kept",
    type=click.IntRange(min=0),
    help="Decisions that stay, from the first one on.  [default: all that are here]",
)
@keys_dir_option
@dry_run_option
@data_dir_option
def hand_over(
    out: Path | None,
    submit: Path | None,
    to: int | None,
    key: str | None,
    kept: int | None,
    keys_dir: Path,
    dry_run: bool,
    data_dir: Path,
) -> None:
    """Let another node organise. --to hands over to a stand-in at once, and needs the organiser's node.

    --out proposes any other key. The deputies `sign` the proposal, and you then --submit it. Both work at any
    running node of the run.
    """
    if sum(given is not None for given in (out, submit, to)) != 1:
        raise click.UsageError(
            "say --to MEMBER, or name a file: to write (--out), or the signed one (--submit)"
        )
    node = running_node(data_dir)
    if to is not None:
        key = next((one.key for one in node.organising().stand_ins if one.member == to), None)
        if key is None:
            fix = "`sfnode organise status` tells who does."
            raise UserError(Code.BAD_OPTION, f"member {to} does not stand in", fix)
        node.hand_over(key)
        echo(f"member {to} is asked to organise; `sfnode organise status` tells when it does")
        return
    if submit:
        said = _read(submit)
        _echo_proposal(said)
        if not dry_run:
            node.succeed(said.model_dump())
            echo("The node has taken it in and tells the others.")
        return
    assert out is not None
    require_new_file(out)
    made = None if key else _new_key(node.organising().run_id, keys_dir)
    from sfnode.schema.organising import SuccessionFile

    said = SuccessionFile.model_validate(
        plain(node.propose((key or "").lower() if made is None else made[0].public.hex(), kept=kept))
    )
    _echo_proposal(said)
    if dry_run:
        return
    if made:
        from sfnode.store.run_keys import write_key

        write_key(*made)
        echo(f"wrote {made[1]}: the next organiser's key; show it to nobody")
    _write(out, said)
    echo(f"wrote {out}: it takes {said.needed} votes of {len(said.deputies)} deputies (sfnode organise sign)")


@click.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@option(
    "--deputy-key",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="KEYFILE",
    help="The deputy's key.  [default: the recovery key of the run in --keys-dir]",
)
@keys_dir_option
@passphrase_file_option
@dry_run_option
def sign(
    file: Path, deputy_key: Path | None, keys_dir: Path, passphrase_file: Path | None, dry_run: bool
) -> None:
    """Add a deputy's vote to a succession. Needs only FILE and the key, so do it on a machine without a
    network.

    Sign only one succession of a term. Two of them void each other, and your vote.
    """
    from sfnode.store.run_keys import load_deputy_key, recovery_key
    from sfprotocol.control_feed import succession_message

    said = _read(file)
    run_id = bytes.fromhex(said.run_id)
    path = deputy_key or recovery_key(run_id, keys_dir)
    deputies = [bytes.fromhex(deputy) for deputy in said.deputies]
    identity = unlocked(lambda passphrase: load_deputy_key(path, deputies, passphrase), passphrase_file)
    _echo_proposal(said)
    if dry_run:
        return
    from sfnode.schema.organising import DeputyVote

    authority, succession = _succession(said)
    number = deputies.index(identity.public)
    signature = identity.sign(succession_message(authority.run_id, succession)).hex()
    others = [vote for vote in said.votes if vote.deputy != number]
    votes = sorted([*others, DeputyVote(deputy=number, signature=signature)], key=lambda vote: vote.deputy)
    signed = said.model_copy(update={"votes": votes})
    _write(file, signed)
    left = max(0, said.needed - _valid(signed))
    echo(f"signed as deputy {number}" + (f"; {left} more votes are needed" if left else "; that is enough"))


def _new_key(run_id: str, keys_dir: Path) -> tuple[Identity, Path]:
    """Return a new organiser's key, and the path for it. Raises UserError BAD_OPTION if a key exists
    there."""
    from sfnode.store.identity import Identity
    from sfnode.store.run_keys import organiser_key

    path = organiser_key(bytes.fromhex(run_id), keys_dir)
    if path.exists():
        raise UserError(
            Code.BAD_OPTION,
            f"{path} exists already, and a new key would take its place",
            "Move it away, name another --keys-dir, or name the next organiser's public key with --key.",
        )
    return Identity.generate(), path


def _read(file: Path) -> SuccessionFile:
    """Read a succession. Raises UserError SUCCESSION_REFUSED."""
    from sfnode.schema.organising import SuccessionFile

    try:
        with file.open("rb") as opened:
            return SuccessionFile.model_validate_json(opened.read(MAX_FILE))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UserError(
            Code.SUCCESSION_REFUSED,
            f"{file} is not a succession: {reason}",
            "Copy it whole, as `sfnode organise hand-over` wrote it.",
        ) from error


def _write(file: Path, said: SuccessionFile) -> None:
    from sfnode.store.disk_errors import disk_faults

    with disk_faults(file):
        file.write_text(said.model_dump_json(indent=2) + "\n", encoding="utf-8")


def _succession(said: SuccessionFile) -> tuple[Authority, Succession]:
    from sfprotocol.messages import Authority

    deputies = tuple(bytes.fromhex(deputy) for deputy in said.deputies)
    return Authority(bytes.fromhex(said.run_id), b"", deputies, said.needed), said.message()


def _valid(said: SuccessionFile) -> int:
    """Return the number of valid votes in a succession file."""
    from sfprotocol.control_feed import valid_votes

    return len(valid_votes(*_succession(said)))


def _echo_proposal(said: SuccessionFile) -> None:
    term = term_in_words(said.term)
    echo(
        f"run {said.run_name} ({said.run_id[:16]}): from term {term} on, key {said.key} signs;\n"
        f"the first {said.kept} decisions stay (chain hash {said.chain[:16]}); "
        f"{_valid(said)} of {said.needed} votes"
    )
