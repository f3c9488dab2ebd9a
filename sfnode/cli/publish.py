"""`sfnode publish` and `sfnode publish-directory`: a run, or several, as a page that any web server can show."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sfnode.cli.data_folder import opened_run
from sfnode.cli.exit import show
from sfnode.cli.options import data_dir_option, option
from sfnode.cli.output import echo
from sfnode.cli.pause import parse_duration
from sfnode.cli.progress import waiting
from sfnode.dashboard.formatting import count
from sfnode.errors import Code, UserError
from sfnode.sizes import size_text

if TYPE_CHECKING:
    from sfnode.publish.site import Site

LEAST_EVERY = 10.0
"""Seconds between two publications: one of a long run takes longer."""

KEY_DIGITS = 8, 64
"""Hex digits by which a key to be hidden is known: as many as a page shows, and all."""

LOCAL = {
    "network": "The link on the page holds addresses of your own network only: nobody can join over the internet.",
    "machine": "The link on the page holds addresses of this machine only: nobody can join from another one.",
}

NOWHERE = "The page has no link: this node does not run and has met nobody. Start it, or give --link."


def _every(context: Any, parameter: Any, value: str | None) -> float | None:
    """Return the interval in seconds."""
    seconds = parse_duration(context, parameter, value)
    if seconds is not None and seconds < LEAST_EVERY:
        raise click.BadParameter(f"{LEAST_EVERY:.0f}s or more")
    return seconds


def parse_keys(_context: Any, _parameter: Any, values: tuple[str, ...]) -> tuple[str, ...]:
    """Return the beginnings of keys in lower case."""
    least, most = KEY_DIGITS
    for value in values:
        if not re.fullmatch(rf"[0-9a-fA-F]{{{least},{most}}}", value):
            raise click.BadParameter(f"{value!r} is not {least} to {most} hex digits, as a key begins")
    return tuple(value.lower() for value in values)


def _address(_context: Any, _parameter: Any, value: str) -> str:
    """Return the address of a page with / at its end."""
    if value and not re.fullmatch(r"https?://[!-~]+", value):
        raise click.BadParameter("an address that begins with https:// or http://")
    return value and value.rstrip("/") + "/"


@click.command
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), metavar="DIR")
@option("--every", callback=_every, metavar="10m", help="Publish again and again, until Ctrl-C.")
@option("--title", metavar="TEXT", default="", help="Title of the page.  [default: the run's name]")
@option("--url", metavar="URL", default="", callback=_address, help="Where the page will be found.")
@option(
    "--hide",
    multiple=True,
    callback=parse_keys,
    metavar="KEY",
    help="Show neither key, name nor team of this member: the first 8 hex digits of its key, or more. "
    "Can be repeated.",
)
@option(
    "--link",
    metavar="LINK",
    default="",
    help="Invitation to publish. The page of a run with --private has one only if it is given.  [default: that "
    "of `sfnode invite`]",
)
@option(
    "--export",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    metavar="FOLDER",
    help="Offer the export in FOLDER, or the last of those in it, for download: for example the `exports` of a "
    "node with --export-every.",
)
@option(
    "--samples/--no-samples",
    default=True,
    help="Whether to show answers to test rows that the running node has recorded.",
)
@data_dir_option
def publish(
    folder: Path,
    every: float | None,
    title: str,
    url: str,
    hide: tuple[str, ...],
    link: str,
    export: Path | None,
    samples: bool,
    data_dir: Path,
) -> None:
    """Write a page about the run of a node's folder to DIR, for any web server.

    One file that needs no other, no script and no server program; beside it run.json for programs and run.toml,
    the run's manifest. It has what the signed log has: how good the model is by the organiser's sealed evaluations, who
    has brought what, how to join and how to verify. The node may be running or not; contacts are current only if it is.
    """
    from sfnode.publish.site import Site, remove_partial

    _check_title(title)
    remove_partial(folder)
    site = Site(folder, data_dir, title=title, hidden=hide, url=url, export=export)
    said = ""
    while True:
        began = time.monotonic()
        try:
            said = _publish(site, folder, data_dir, link, samples, said)
        except UserError as error:
            if every is None or not said:
                raise
            show(error)
        if every is None:
            return
        time.sleep(max(0.0, began + every - time.monotonic()))


def _check_title(title: str) -> None:
    """Raise UserError BAD_OPTION for what is no line of text."""
    from sfnode.publish.run_file import MAX_TITLE

    if len(title) > MAX_TITLE or not title.isprintable():
        raise UserError(
            Code.BAD_OPTION, "--title: this is no line of text", f"Use {MAX_TITLE} characters at most."
        )


def _publish(site: Site, folder: Path, data_dir: Path, link: str, samples: bool, said: str) -> str:
    """Publish once, and tell so; return the warnings, which are not repeated while they stay the same."""
    from sfnode.publish.asking import ask
    from sfnode.publish.run_file import utc_now

    with opened_run(data_dir) as (manifest, update_log):
        with waiting("reading the log"):
            told = ask(manifest, update_log, data_dir, link, samples=samples)
            published = site.publish(manifest, update_log, told, utc_now())
    run = published.run
    seal = f"seal of epoch {run.seal.epoch}" if run.seal else "no seal yet" if run.organised else "open run"
    figures = f"{size_text(published.page_bytes)}, {seal}, {count(run.updates)} updates"
    echo(f"wrote {folder / 'index.html'} ({figures})")
    warnings = [f"--hide {key}: nothing of such a key counts (yet)" for key in published.unmatched]
    if told.contact.reach is None and not manifest.organised.private:
        warnings.append(NOWHERE)
    warnings += [LOCAL[told.contact.reach]] if told.contact.reach in LOCAL else []
    text = "\n".join(warnings)
    if text and text != said:
        echo(text, err=True)
    return text or "nothing to say"
