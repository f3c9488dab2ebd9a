"""Requests to a running node for the page of its run: current contacts, the rate of updates, answers to test
rows.

If the node does not run, recorded contacts and answers are read from its folder, and the rate is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sfnode.control.client import SyncClient, if_running
from sfnode.errors import Code, UserError
from sfnode.manifest import Manifest
from sfnode.node.contacts_page import known_url
from sfnode.node.samples import kept
from sfnode.node.startup import remembered_peers
from sfnode.peers import contacts
from sfnode.peers.invitations import check_same_run, compose, invite, reach, read_link
from sfnode.publish.page import PageSample
from sfnode.schema.results import Reach
from sfnode.store.data_folder import Layout
from sfnode.store.log import UpdateLog


class PageContact(NamedTuple):
    """Contacts through which others can currently join the run."""

    link: str = ""
    addresses: Sequence[str] = ()
    reach: Reach | None = None
    """Networks from which the contacts can be reached; None without a link."""


class NodeAnswers(NamedTuple):
    """Information from a node, or from its folder, for the page of its run."""

    contact: PageContact = PageContact()
    running: bool = False
    updates_per_hour: float | None = None
    samples: Sequence[PageSample] = ()


def ask(
    manifest: Manifest,
    update_log: UpdateLog,
    data_dir: Path,
    *,
    link: str = "",
    contacts_url: str = "",
    samples: bool = False,
) -> NodeAnswers:
    """Ask the node of a data folder or, if it does not run, read the folder.

    If `link` is given, it is published in place of the node's own link. The own link of a node in a private
    run is never published. If `contacts_url` is given, the published link names it (SPEC N6). Raises
    UserError BAD_LINK, NEWER_PROTOCOL or WRONG_RUN if `link` cannot be used, and the errors of the node.
    """
    node = SyncClient(Layout(data_dir).control_socket)
    progress = if_running(node.progress)
    if link:
        said = read_link(link)
        check_same_run(said, manifest.run_id.hex())
        contact = PageContact(link.strip(), said.addresses, reach(said))
    elif manifest.organised.private:
        contact = PageContact()
    else:
        contact = _contact(node, manifest, update_log)
    if contact.link and contacts_url:
        contact = contact._replace(link=contacts.naming(contact.link, contacts_url))
    rate = progress.updates_per_second if progress else None
    return NodeAnswers(
        contact=contact,
        running=progress is not None,
        updates_per_hour=None if rate is None else 3600 * rate,
        samples=_samples(node, data_dir) if samples else (),
    )


def _samples(node: SyncClient, data_dir: Path) -> Sequence[PageSample]:
    """Return the test rows that a node has recorded, each with the base model's answer and the last recorded
    answer of the trained model."""
    found = if_running(node.samples) or kept(Layout(data_dir).samples)
    if not found.moments:
        return ()
    last = found.moments[-1]
    return [
        PageSample(row.text, row.right, row.base, answer, last.epoch, row.base_score, score)
        for row, answer, score in zip(found.rows, last.answers, last.scores, strict=False)
    ]


def _contact(node: SyncClient, manifest: Manifest, update_log: UpdateLog) -> PageContact:
    try:
        found = if_running(node.invitation)
        if found is None:
            met, url = remembered_peers(update_log), known_url("", update_log)
            found = invite(manifest, compose(manifest.run_id, [], met, url=url))
    except UserError as error:
        if error.code != Code.NO_ADDRESS:
            raise
        return PageContact()
    return PageContact(found.link, found.addresses, found.reach)
