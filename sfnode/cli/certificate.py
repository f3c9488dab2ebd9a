"""`sfnode certificate` and `sfnode verify-certificate`: a member's contribution, signed by the organiser."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.data_folder import opened_run
from sfnode.cli.options import data_dir_option, option
from sfnode.cli.output import echo
from sfnode.cli.passphrases import passphrase_file_option, unlocked
from sfnode.cli.progress import waiting
from sfnode.cli.publish import parse_keys
from sfnode.cli.succession import keys_dir_option
from sfnode.errors import Code, UserError
from sfnode.store.data_folder import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sfnode.publish.certificate import Certificate
    from sfprotocol.control_feed import ControlFeed
    from sfprotocol.messages import Entry


@click.command
@click.argument("key", metavar="KEY")
@option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="New file: a drawing (.svg), which has the data in it, or the data alone (.json).  [default: "
    "certificate-KEY.svg]",
)
@option(
    "--with-name/--without-name",
    default=True,
    help="Whether to put in the name that the member gives itself.",
)
@keys_dir_option
@passphrase_file_option
@data_dir_option
def certificate(
    key: str,
    out: Path | None,
    with_name: bool,
    keys_dir: Path,
    passphrase_file: Path | None,
    data_dir: Path,
) -> None:
    """Certify, as the organiser of a run, what the member with KEY has contributed.

    KEY: the first 8 hex digits of its key, or more. Everything in the certificate follows from the decisions
    in the log of the folder; the organiser's node may be running. `sfnode verify-certificate` checks it.
    """
    from sfnode.node.startup import settled
    from sfnode.publish import certificate as certificates
    from sfnode.publish.run_file import utc_now
    from sfnode.publish.site import write
    from sfnode.store.disk_errors import disk_faults
    from sfnode.store.run_keys import load_organiser_key
    from sfprotocol.names import NAMELESS

    (prefix,) = parse_keys(None, None, (key,))
    out = out or Path(f"certificate-{prefix[:8]}.svg")
    _check_out(out)
    with opened_run(data_dir) as (manifest, update_log):
        run = manifest.parameters()
        if run.organised is None:
            raise _open_run()
        with waiting("reading the log"):
            feed = certificates.control_of(run, update_log)
            member = _member(feed.entries, prefix)
            names = settled(run, update_log).cards.names().get(member, NAMELESS)
        said = certificates.contribution(
            manifest, feed, feed.stop, member, name=names.name if with_name else "", issued=utc_now()
        )
        organiser = unlocked(
            lambda passphrase: load_organiser_key(run.run_id, feed.key or b"", keys_dir, passphrase),
            passphrase_file,
        )
        made = certificates.issue(said, organiser.sign, feed.succession)
    with disk_faults(out):
        write(out, made.drawing() if out.suffix == ".svg" else made.to_json())
    echo(f"wrote {out}: {in_words(made)}")


def _check_out(out: Path) -> None:
    """Raise UserError BAD_OPTION for a file that cannot be written or has no form."""
    if out.suffix not in (".svg", ".json"):
        raise UserError(
            Code.BAD_OPTION, f"--out: {out} names no form", "Use a name that ends in .svg or .json."
        )
    if out.exists():
        raise UserError(Code.BAD_OPTION, f"{out} exists already", "Name another file.")


def _open_run() -> UserError:
    return UserError(
        Code.RUN_IS_OPEN,
        "an open run has no organiser who could certify anything",
        "`sfnode top` ranks its origins by updates.",
    )


def _member(entries: Sequence[Entry], prefix: str) -> bytes:
    """Return the key of the member that begins so. Raises UserError BAD_OPTION unless there is one."""
    from sfprotocol.decisions import Admit, read

    said = (read(entry.record).decision for entry in entries)
    keys = {one.origin for one in said if isinstance(one, Admit) and one.origin.hex().startswith(prefix)}
    if len(keys) != 1:
        found = "no member has" if not keys else f"{len(keys)} members have"
        raise UserError(
            Code.BAD_OPTION,
            f"{found} a key that begins with {prefix}",
            "`sfnode leaderboard` lists the keys.",
        )
    return keys.pop()


@click.command("verify-certificate")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@option(
    "--run",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="MANIFEST",
    help="Manifest of the run, such as the run.toml of its page.  [default: that in --data-dir]",
)
@data_dir_option
def verify_certificate(file: Path, run: Path | None, data_dir: Path) -> None:
    """Check that the organiser of a run has signed a certificate, a drawing or its data.

    The manifest names the organiser's key. Where --data-dir has the log of the run, everything in the
    certificate is computed anew from the decisions in it.
    """
    from sfnode.manifest import Manifest
    from sfnode.publish import certificate as certificates
    from sfnode.store.disk_errors import disk_faults

    with disk_faults(file), file.open("rb") as data:
        content = data.read(certificates.MAX_FILE + 1)
    found = certificates.Certificate.parse(content, str(file))
    manifest = Manifest.from_toml(run) if run else None
    with ExitStack() as stack:
        update_log = None
        if manifest is None or _has(data_dir, manifest):
            manifest, update_log = stack.enter_context(opened_run(data_dir))
        certificates.check(found, manifest, str(file))
        echo(in_words(found))
        said = found.statement
        echo(
            f"signed by the organiser of run {said.run_id} on {said.issued[:10]}: the manifest names the key"
        )
        if update_log:
            feed = certificates.control_of(manifest.parameters(), update_log)
            echo(_compared(found, feed, certificates.compare(found, manifest, feed, str(file))))


def _has(data_dir: Path, manifest: Any) -> bool:
    """Return whether the folder is of a node of this run."""
    from sfnode.manifest import Manifest

    file = Layout(data_dir).manifest
    return file.exists() and Manifest.from_toml(file).run_id == manifest.run_id


def _compared(found: Certificate, feed: ControlFeed, whole: bool) -> str:
    if whole:
        return f"the {found.statement.decisions} decisions in the log here come to the same"
    return f"not computed anew: the log here has {feed.stop} of {found.statement.decisions} decisions"


def in_words(found: Certificate) -> str:
    from sfnode.dashboard.formatting import count, nats
    from sfnode.schema.metrics import NO_WORTH

    said = found.statement
    who = f"{said.name} ({said.member})" if said.name else said.member
    figures = f"{count(said.updates)} updates of epochs {said.first_epoch} to {said.last_epoch}"
    worth = f"worth {nats(said.worth)} nats by {count(said.measured)} that were measured"
    worth = worth if said.measured else f"their worth not measured ({NO_WORTH})"
    return f"{who}: {figures} count in run {said.run_name} by the seal of epoch {said.seal}, {worth}"
