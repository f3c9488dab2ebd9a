"""`sfnode publish page` and `directory`: a run, or several, as a page for any web server."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.data_folder import opened_run
from sfnode.cli.exit import warn
from sfnode.cli.options import data_dir_option, option, out_option
from sfnode.cli.output import echo
from sfnode.cli.owner import parse_duration
from sfnode.cli.passphrases import keys_dir_option, passphrase_file_option
from sfnode.cli.progress import waiting
from sfnode.dashboard.formatting import count
from sfnode.errors import Code, UserError
from sfnode.printable import size_text

if TYPE_CHECKING:
    from sfnode.manifest import Manifest
    from sfnode.publish.signature import Signer
    from sfnode.publish.site import PublishedFolder
    from sfnode.store.log import UpdateLog

LEAST_EVERY = 10.0
"""Minimum of --every, in seconds. Publishing a long run takes longer than that."""

KEY_DIGITS = 8, 64
"""Minimum and maximum number of hex digits that name a key to hide: the digits that a page shows, and the
whole key."""

LOCAL = {
    "network": "The page's link has addresses of your own network only: nobody can join over the internet.",
    "machine": "The page's link has addresses of this machine only: nobody can join from another one.",
}

NO_MANIFEST = (
    "run.toml is not published: this manifest names folders of a machine (docs/organising.md). Without it "
    "run.json cannot be signed."
)

NOWHERE = "The page has no link: this node does not run and has met nobody. Start it, or give --public-link."


def _every(context: Any, parameter: Any, value: str | None) -> float | None:
    """Return the interval in seconds; None if it is not given."""
    seconds = parse_duration(context, parameter, value)
    if seconds is not None and seconds < LEAST_EVERY:
        raise click.BadParameter(f"{LEAST_EVERY:.0f}s or more")
    return seconds


def parse_keys(_context: Any, _parameter: Any, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the beginnings of keys to hide, in lower case."""
    least, most = KEY_DIGITS
    for value in values:
        if not re.fullmatch(rf"[0-9a-fA-F]{{{least},{most}}}", value):
            raise click.BadParameter(f"{value!r} is not {least} to {most} hex digits, as a key begins")
    return tuple(value.lower() for value in values)


def _address(_context: Any, _parameter: Any, value: str) -> str:
    """Return the address of a page with / at its end."""
    from sfprotocol.invitation import URL_FORM, is_url

    found = value and value.rstrip("/") + "/"
    if found and not is_url(f"{found}run.json"):
        raise click.BadParameter(f"give it as {URL_FORM}")
    return found


@click.command
@out_option("FOLDER", "Where to write the page; a web server may serve it.")
@option("--every", callback=_every, metavar="10m", help="Publish again and again, until Ctrl-C.")
@option("--title", metavar="TEXT", default="", help="Title of the page.  [default: the run's name]")
@option(
    "--url",
    metavar="URL",
    default="",
    callback=_address,
    help="Where the page will be found. The link then names its run.json, which nodes ask when peers have "
    "moved.",
)
@option(
    "--hide",
    multiple=True,
    callback=parse_keys,
    metavar="KEY",
    help="Show neither key, name nor team of this member: the first 8 hex digits of its key, or more. "
    "Can be repeated.",
)
@option(
    "--public-link",
    metavar="LINK",
    default="",
    help="Invitation to publish. The page of a private run has one only if it is given.  [default: that of "
    "`sfnode invite`]",
)
@option(
    "--samples/--no-samples",
    default=False,
    help="Whether to show answers to test rows that the node has recorded, with the texts of these rows.",
)
@keys_dir_option
@passphrase_file_option
@data_dir_option
def page(
    out: Path,
    every: float | None,
    title: str,
    url: str,
    hide: tuple[str, ...],
    public_link: str,
    samples: bool,
    keys_dir: Path,
    passphrase_file: Path | None,
    data_dir: Path,
) -> None:
    """Write a page about the run of a node's folder, for any web server.

    The page is one file without scripts that needs no other file. Beside it are run.json, for programs, and
    the run's manifest. It shows the contents of the signed log: the model's quality by the organiser's
    evaluations, the contributors, and how to join and to verify. Without a running node it has the recorded
    contacts. With the organiser's key here, run.json is signed. A directory prefers signed files.
    """
    from sfnode.publish.run_file import NAME
    from sfnode.publish.site import PublishedFolder, remove_partial

    _check_title(title)
    remove_partial(out)
    site = PublishedFolder(out, data_dir, title=title, hidden=hide, url=url)
    contacts = url and f"{url}{NAME}"
    said = ""
    key = keys_dir, passphrase_file
    while True:
        began = time.monotonic()
        try:
            said = _publish(site, out, data_dir, public_link, contacts, samples, key, said)
        except UserError as error:
            if every is None or not said:
                raise
            warn(error)
        if every is None:
            return
        time.sleep(max(0.0, began + every - time.monotonic()))


def _check_title(title: str) -> None:
    """Raise UserError BAD_OPTION for a title that is not one printable line."""
    from sfnode.publish.run_file import MAX_TITLE
    from sfprotocol.fields import readable

    if len(title) > MAX_TITLE or not readable(title):
        raise UserError(
            Code.BAD_OPTION, "--title: this is no line of text", f"Use {MAX_TITLE} characters at most."
        )


def _publish(
    site: PublishedFolder,
    folder: Path,
    data_dir: Path,
    link: str,
    contacts: str,
    samples: bool,
    key: tuple[Path, Path | None],
    said: str,
) -> str:
    """Publish the page once, and print what was written. Print the warnings if they differ from `said`, those
    of the previous call. Return the warnings or, without any, another text that is not empty: an empty `said`
    means that nothing was published yet."""
    from sfnode.manifest import names_folders
    from sfnode.publish.asking import ask
    from sfnode.publish.run_file import utc_now

    with opened_run(data_dir) as (manifest, update_log), waiting("reading the log"):
        told = ask(manifest, update_log, data_dir, link=link, contacts_url=contacts, samples=samples)
        signer, unsigned = _signer(manifest, update_log, *key)
        published = site.publish(manifest, update_log, told, utc_now(), signer)
    run = published.run
    seal = f"round {run.seal.epoch}" if run.seal else "no round yet" if run.organised else "open run"
    figures = f"{size_text(published.page_bytes)}, {seal}, {count(run.updates)} updates"
    signed = "signed by the organiser" if published.signed else "not signed"
    echo(f"wrote {folder / 'index.html'} ({figures}; {signed})")
    warnings = [f"--hide {key}: nothing of such a key counts (yet)" for key in published.unmatched]
    if told.contact.reach is None and not manifest.organised.private:
        warnings.append(NOWHERE)
    warnings += [LOCAL[told.contact.reach]] if told.contact.reach in LOCAL else []
    warnings += [NO_MANIFEST] * names_folders(manifest) or unsigned
    text = "\n".join(warnings)
    if text and text != said:
        echo(text, err=True)
    return text or "nothing to say"


def _signer(
    manifest: Manifest, update_log: UpdateLog, keys_dir: Path, passphrase_file: Path | None
) -> tuple[Signer | None, list[str]]:
    """Return the signer of run.json, and a list of at most one warning. The signer is None in an open run, if
    no key is here, and if the key here cannot be used. Only in the last case there is a warning, which gives
    the reason."""
    from sfnode.publish.signature import Signer
    from sfnode.store.replay import kept_control, sound_control
    from sfnode.store.run_keys import load_organiser_key, read_passphrase
    from sfprotocol.control_sync import ControlSync
    from sfprotocol.events import Counters
    from sfprotocol.frontier import Frontier

    run = manifest.parameters()
    if run.organised is None:
        return None, []
    with sound_control(update_log):
        control = ControlSync(Frontier(run), {}, Counters(), kept=kept_control(update_log)).feed
    try:
        passphrase = read_passphrase(passphrase_file) if passphrase_file else None
        key = load_organiser_key(run.run_id, [control.key or b""], keys_dir, passphrase)
    except UserError as error:
        told = error.code is not Code.KEY_NOT_FOUND
        return None, [f"run.json is not signed: {error.what}"] * told
    return Signer(manifest, control, key.sign), []


@click.command
@click.argument("sources", nargs=-1, required=True, metavar="RUN.JSON...")
@out_option("FOLDER", "Where to write the page.")
@option("--title", metavar="TEXT", default="Runs", help="Title of the page.")
def directory(sources: tuple[str, ...], out: Path, title: str) -> None:
    """Write a page about several runs, from the run.json files of their pages.

    Each is a file or an address (https://...). Files that cannot be read are listed on the page and here. If
    several files are about one run, the last one that its organiser signed is shown or, if none is signed,
    the first.
    """
    from sfnode.publish.directory import MAX_RUNS, directory_page
    from sfnode.publish.run_file import utc_now
    from sfnode.publish.site import PAGE, write
    from sfnode.store.disk_errors import disk_faults

    _check_title(title)
    if len(sources) > MAX_RUNS:
        raise UserError(
            Code.BAD_OPTION, f"{len(sources)} runs are too many for a page", f"Name {MAX_RUNS} at most."
        )
    made, unread = directory_page(sources, title, utc_now())
    with disk_faults(out):
        out.mkdir(parents=True, exist_ok=True)
        write(out / PAGE, made.encode())
    for one in unread:
        echo(f"cannot be read: {one.source}: {one.reason}", err=True)
    echo(f"wrote {out / PAGE} ({len(sources) - len(unread)} of {len(sources)} runs)")
