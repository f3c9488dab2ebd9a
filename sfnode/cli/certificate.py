"""`sfnode certificate make` and `check`: a member's contribution, by the log of its run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from sfnode.cli.data_folder import opened_run
from sfnode.cli.options import data_dir_option, option, out_option, require_new_file
from sfnode.cli.output import echo
from sfnode.cli.progress import waiting
from sfnode.cli.publish import parse_keys
from sfnode.errors import Code, UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sfnode.manifest import Manifest
    from sfnode.publish.certificate import Certificate
    from sfnode.store.log import UpdateLog
    from sfprotocol.control_feed import ControlFeed
    from sfprotocol.counting import Member


@click.command
@click.argument("key", metavar="KEY")
@out_option(
    "FILE",
    "New file: a drawing (.svg), which has the data in it, or the data alone (.json).  [default: "
    "certificate-KEY.svg]",
    required=False,
)
@option(
    "--with-name/--without-name",
    default=True,
    help="Whether to put in the name that the member gives itself.",
)
@data_dir_option
def make(key: str, out: Path | None, with_name: bool, data_dir: Path) -> None:
    """Certify what the member with KEY has contributed to a run.

    KEY: the first 8 hex digits of its key, or more. Everything in the certificate follows from the decisions
    in the log of the folder, whose node may be running. `sfnode certificate check` checks it.
    """
    from sfnode.publish import certificate as certificates
    from sfnode.publish.site import write
    from sfnode.store.disk_errors import disk_faults
    from sfnode.store.replay import counting_of

    (prefix,) = parse_keys(None, None, (key,))
    out = out or Path(f"certificate-{prefix[:8]}.svg")
    require_new_file(out, ".svg", ".json")
    with opened_run(data_dir) as (manifest, update_log), waiting("reading the log"):
        feed, names = _read(manifest, update_log)
        member = _member(counting_of(manifest.parameters(), feed.entries).members, prefix)
        name = names.get(member, "") if with_name else ""
        made = certificates.contribution(manifest, feed, feed.stop, member, name=name)
    with disk_faults(out):
        write(out, made.drawing() if out.suffix == ".svg" else made.to_json())
    echo(f"wrote {out}: {in_words(made)}")


def _read(manifest: Manifest, update_log: UpdateLog) -> tuple[ControlFeed, Mapping[bytes, str]]:
    """Return the decisions in a log, and the names that members give themselves, by key."""
    from sfnode.node.startup import settled
    from sfnode.publish.certificate import control_of

    run = manifest.parameters()
    if run.organised is None:
        raise UserError(
            Code.RUN_IS_OPEN,
            "in an open run nothing says what counts, so that nothing can be certified",
            "`sfnode top` ranks its origins by updates.",
        )
    names = settled(run, update_log).cards.names()
    return control_of(run, update_log), {origin: said.name for origin, said in names.items()}


def _member(members: Iterable[Member], prefix: str) -> bytes:
    """Return the key of the member that begins so. Raises UserError BAD_OPTION unless there is one."""
    keys = {one.origin for one in members if one.origin.hex().startswith(prefix)}
    if len(keys) != 1:
        found = "no member has" if not keys else f"{len(keys)} members have"
        raise UserError(
            Code.BAD_OPTION,
            f"{found} a key that begins with {prefix}",
            "`sfnode leaderboard` lists the keys.",
        )
    return keys.pop()


@click.command
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE")
@data_dir_option
def check(file: Path, data_dir: Path) -> None:
    """Compute a certificate, a drawing or its data, anew from the log of its run in --data-dir.

    The log is that of any node of the run, or of its archive (`sfnode history import`); its signatures are
    checked.
    """
    from sfnode.publish import certificate as certificates
    from sfnode.store.disk_errors import disk_faults

    with disk_faults(file), file.open("rb") as data:
        content = data.read(certificates.MAX_FILE + 1)
    found = certificates.Certificate.parse(content, str(file))
    with opened_run(data_dir) as (manifest, update_log):
        feed, names = _read(manifest, update_log)
        certificates.check(found, manifest, feed, names, str(file))
    echo(in_words(found))
    echo(f"the {found.decisions} decisions in the log here come to the same")


def in_words(found: Certificate) -> str:
    from sfnode.dashboard.formatting import count, nats
    from sfnode.publish.certificate import NO_WORTH

    who = f"{found.name} ({found.member})" if found.name else found.member
    figures = f"{count(found.updates)} updates of rounds {found.first_epoch} to {found.last_epoch}"
    worth = f"and lowered the loss by {nats(found.worth)} ({count(found.measured)} were measured)"
    worth = worth if found.measured else f"their worth not measured ({NO_WORTH})"
    return f"{who}: {figures} count in run {found.run_name} after round {found.seal}, {worth}"
