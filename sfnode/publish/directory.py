"""A page made of several runs' `run.json`: a directory for people who look for a run to join.

The files may come from strangers' web servers. Size and download time of each file are bounded, and its
contents are shown as text. A file that cannot be read is listed with the reason.

If several files are about one run, only those with a signature by the run's latest organiser are considered,
and the newest of them is shown. If no file is signed, the first one is shown.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from http.client import HTTPException
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from sfnode.dashboard.snapshot import Words
from sfnode.errors import UserError
from sfnode.peers.contacts import FETCH_DEADLINE, MAX_FILE, download
from sfnode.publish.page import SPARK, chart, gain, moment, render, verdict_of
from sfnode.publish.run_file import NAME, RunFile, bad_run_file
from sfnode.publish.signature import Signature, signature_of
from sfprotocol.invitation import is_url

MAX_RUNS = 200
"""Maximum number of runs in one directory. Each run takes 3 kB of the page. A run whose server hangs also
delays the page by ten seconds."""

MAX_REASON = 200
"""Maximum length of the reason why a run cannot be read, in characters."""

AHEAD = timedelta(minutes=10)
"""Maximum time by which a file's timestamp may be ahead of this machine's clock. Two machines' clocks usually
differ by far less."""


class Told(NamedTuple):
    """A `run.json` that was read, with its source."""

    run: RunFile
    signature: Signature | None
    source: str


class ListedRun(NamedTuple):
    """A run in a directory."""

    run: RunFile
    page: str
    """Address of the run's page; empty if it is not known."""
    verdict: Words
    gain: str
    chart: Markup | None
    updated: str

    @property
    def join(self) -> str:
        """Return the argument of `sfnode join`; empty if the file names no way to join."""
        return f"{self.page}{NAME}" if self.page else self.run.link


class Unread(NamedTuple):
    """A run whose file cannot be read."""

    source: str
    """Address of the file, or its name without folders."""
    reason: str


def read(source: str, now: datetime) -> Told:
    """Read a `run.json` from a path or an address. Raises UserError BAD_RUN_FILE."""
    try:
        if is_url(source):
            data = download(source, time.monotonic() + FETCH_DEADLINE)
        else:
            with Path(source).open("rb") as file:
                data = file.read(MAX_FILE + 1)
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "strerror", None) or str(getattr(error, "reason", "") or error)
        raise bad_run_file(source, reason or "no answer") from error
    run = RunFile.parse(data, source)
    if run.updated > now + AHEAD:
        raise bad_run_file(source, f"updated: {moment(run.updated)} is yet to come")
    return Told(run, signature_of(run, data, source), source)


def directory_page(sources: Sequence[str], title: str, now: datetime) -> tuple[str, list[Unread]]:
    """Return the page about the runs of these files, and the list of files that cannot be read. Runs in
    progress are listed first, then complete runs. Within each group the most recently updated run is
    first."""
    told: dict[str, list[Told]] = {}
    unread = []
    for source in sources:
        try:
            one = read(source, now)
        except UserError as error:
            unread.append(Unread(_public(source), _reason(error.what.partition(" that can be used: ")[2])))
        else:
            told.setdefault(one.run.run_id, []).append(one)
    found = [_entry(_trusted(several)) for several in told.values()]
    runs = sorted(found, key=lambda one: (one.run.complete, -one.run.updated.timestamp()))
    summary = (
        f"{len(runs)} language models that people train together, with everything signed and verifiable."
    )
    page = render(
        "runs.html", title=title, summary=summary, url="", runs=runs, unread=unread, updated=moment(now)
    )
    return page, unread


def _trusted(told: Sequence[Told]) -> Told:
    """Return the file to show among several files about one run."""
    signed = [(one, one.signature) for one in told if one.signature]
    successions = [signature.succession for _, signature in signed if signature.succession]
    found = [
        (term, one.run.updated, one)
        for one, signature in signed
        for term, key in [signature.signer(successions)]
        if signature.holds(key)
    ]
    return max(found, key=itemgetter(0, 1), default=(0, None, told[0]))[2]


def _entry(told: Told) -> ListedRun:
    """Return a run's entry in the directory. If the file was read from a web address that ends in
    `/run.json`, the page's address is that address without the file's name. Otherwise the file itself names
    the page's address."""
    run, source = told.run, told.source
    page = source.removesuffix(NAME) if is_url(source) and source.endswith(f"/{NAME}") else run.url
    quality = run.quality
    latest = quality.latest if quality else None
    verdict = verdict_of(run)
    base = quality.base.value if quality and quality.base else None
    return ListedRun(
        run=run,
        page=page,
        verdict=verdict,
        gain=gain(run),
        chart=chart(run.curve, base, latest.metric, SPARK, verdict.text) if latest else None,
        updated=moment(run.updated),
    )


def _public(source: str) -> str:
    """Return a source in the form in which the page shows it: a web address unchanged, and a path without the
    names of this machine's folders."""
    return source if is_url(source) else Path(source).name


def _reason(what: str) -> str:
    return what if len(what) <= MAX_REASON else f"{what[: MAX_REASON - 1]}…"
