"""All nodes of a run are restarted, the organiser too, and an older link still leads into the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from sfnode.store.data_folder import Layout
from sfprotocol import invitation
from tests.processes.helpers import LOOPBACK, Node, nodes, printed_json, sfnode, until

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

Make = Callable[..., Node]

TRAINER = (*LOOPBACK, "--set", "node.samples=0", "--limit", "cpu=25")


class Quiet(SimpleHTTPRequestHandler):
    """A web server of files that logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder on this machine within the block. Yield the URL of its `run.json`."""
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/run.json"
    finally:
        server.shutdown()
        server.server_close()


def invite(home: Path, node: Node, *arguments: object) -> str:
    """Return the link that `sfnode invite` shows for this node's folder."""
    said = printed_json(sfnode(home, "invite", "--data-dir", node.folder, "--json", *arguments))
    return str(said["link"])


def test_yesterdays_link_leads_into_a_run_of_which_every_node_was_restarted(tmp_path: Path) -> None:
    made = sfnode(
        tmp_path, "init", "--model", "builtin:tiny", "--task", "reviews",
        "--set", "training.update_budget=1000000", "--set", "task.loss=plain", "--set", "init.measure=no",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    with served(tmp_path / "www") as url, nodes(tmp_path) as make:
        organiser = make(
            "organiser", "--run", "run.toml", "--organise", "--set", f"run.contacts={url}", *TRAINER
        ).start()
        member = make("member", organiser.link(), *TRAINER).start()
        counts(organiser, member)
        assert "--organise" not in member.output(), "the key is here, and its node runs already"
        link = invite(tmp_path, member)
        said = invitation.read(link)
        assert (len(said.contacts), said.url) == (2, url)
        until(  # it learns the member's address within seconds, and has no other clue later
            "the organiser knows where the member is",
            lambda: len(invitation.read(invite(tmp_path, organiser)).contacts) == 2,
        )

        everyone = [organiser, member]
        end(everyone)
        move(organiser)  # then only the member's address in the link is still right
        for node in everyone:
            node.start()
        assert len(listening(everyone) & set(said.addresses)) == 1
        newcomer = make("newcomer", link, *TRAINER).start()
        counts(organiser, newcomer)

        everyone.append(newcomer)
        end(everyone)
        for node in everyone:
            move(node)
        organiser.start()
        listening([organiser])
        invite(tmp_path, organiser, "--run-json", tmp_path / "www" / "run.json")
        member.start()
        late = make("late", link, *TRAINER).start()
        counts(organiser, late)
        counts(organiser, member)  # it knows no other address, and has asked the page named by its link
        assert not listening([organiser, member]) & set(said.addresses)


def counts(organiser: Node, member: Node) -> None:
    """Wait until the organiser has an update that the member made after this call."""
    own = member.until("it trains", lambda status: status.own_updates > 0)
    assert own.origin is not None
    had = made_by(organiser, own.origin)
    until("the organiser has its updates", lambda: made_by(organiser, own.origin) > had)


def made_by(node: Node, origin: str | None) -> int:
    """Return the number of updates of an origin that a node has."""
    return sum(feed.updates for feed in node.feeds() if feed.origin == origin)


def listening(running: list[Node]) -> set[str]:
    """Return the present addresses of these nodes."""
    return {address for node in running for address in node.until("it listens", bool).addresses}


def end(running: list[Node]) -> None:
    for node in running:
        assert node.end() == 0


def move(node: Node) -> None:
    """Make a node listen on another port from its next start on."""
    Layout(node.folder).ports.unlink()
