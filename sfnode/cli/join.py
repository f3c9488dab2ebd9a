"""`sfnode join`: run a node."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from pydantic import ValidationError

import sfnode
from sfnode.cli import options, progress
from sfnode.cli.dashboard import dashboard_control_option, dashboard_token_option, shown
from sfnode.cli.ending import Ending
from sfnode.cli.exit import DONE, ended_at_once, leave, show, status_of
from sfnode.cli.keys import Command
from sfnode.cli.options import note
from sfnode.cli.output import echo
from sfnode.cli.owner import limit_option
from sfnode.cli.passphrases import asked
from sfnode.cli.progress import Narration, follow
from sfnode.descriptors import allow_most
from sfnode.errors import Code, UserError
from sfnode.logging import FORMATS, begins, log_error, set_up_logging
from sfnode.peers.invitations import check_same_run, read_link
from sfnode.printable import command
from sfnode.settings import Settings
from sfnode.store.data_folder import Layout
from sfnode.transport.base import peer_of
from sfprotocol.invitation import is_url

if TYPE_CHECKING:
    from pathlib import Path

    from sfnode.daemon import Node
    from sfnode.manifest import Manifest
    from sfnode.store.data_folder import DataDir
    from sfnode.transport.base import Transport


def parse_shard(_context: Any, _parameter: Any, value: str | None) -> tuple[int, int] | None:
    """Return a text `K/N`, with K from 1 to N, as (K - 1, N)."""
    if value is None:
        return None
    index, slash, count = value.partition("/")
    if not (slash and index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise click.BadParameter("give it as K/N with K from 1 to N, for example 2/4")
    return int(index) - 1, int(count)


def parse_text(_context: Any, parameter: Any, value: str) -> str:
    """Return the text. Raises click.BadParameter unless it is valid for the option's field of `Settings`."""
    try:
        Settings.model_validate({parameter.name: value})
    except ValidationError as error:
        raise click.BadParameter(options.reason(error)) from error
    return value


GROUPS = {
    "The run": "--run --peers --data-dir --profile",
    "This node": "--data --skip-bad-rows --verifier --model --role --device --dtype --threads --limit "
    "--steps --until-complete --follow --from-checkpoint --display-name --team",
    "Network": "--host-maddrs --announce-maddrs --auto-relay",
    "Organising": "--organise --keys-dir",
    "Views, and more options": "--dashboard --metrics --log-to --log-level --notify --set --help-all -h",
}
"""Flags of the options in the help, keyed by heading."""


@click.command(cls=Command, groups=GROUPS)
@options.link_argument
@options.peers_option("A node of the run, or any peer of Hivemind's DHT; may be repeated.")
@options.run_option("Start the run of this manifest; with --peers, join no other.")
@options.setting("--run-id", key="run.id", metavar="HEX")
@options.setting("--contacts-url", key="run.contacts", metavar="URL", callback=parse_text)
@options.setting("--role", metavar="ROLE")
@options.data_dir_option
@options.model_option
@options.setting("--share-model/--no-share-model", key="data.share_model")
@options.setting("--data")
@options.setting("--test", key="data.test")
@options.setting("--validation", key="data.validation")
@options.setting("--skip-bad-rows")
@options.verifier_option
@options.setting("--noise", key="noise.multiplier", metavar="MULTIPLIER")
@options.setting("--noise-epsilon", key="noise.epsilon", metavar="EPSILON")
@options.setting("--noise-clip", key="noise.clip", metavar="SLOPE")
@options.setting("--shard", key="data.shard", callback=parse_shard, metavar="K/N")
@options.devices_option
@options.dtype_option
@options.threads_option("CPU threads.  [default: as many as find a core that is free]")
@options.setting("--queries", key="node.queries")
@options.setting("--steps")
@options.setting("--display-name", callback=parse_text, metavar="TEXT")
@options.setting("--team", callback=parse_text, metavar="TEXT")
@options.setting("--until-complete")
@options.setting("--follow")
@options.setting("--invitation", key="run.invitation", callback=parse_text, metavar="NUMBER:HEX")
@options.setting("--organise")
@options.setting("--alone", key="organise.alone")
@options.setting("--search/--no-search", key="organise.search")
@options.setting("--guard/--no-guard", key="organise.guard")
@options.setting("--renew-bases", key="organise.renew_bases")
@options.setting("--from-checkpoint")
@options.setting("--history", key="history.keep")
@options.setting("--keys-dir", metavar="FOLDER")
@options.setting("--admission", key="organise.admission")
@options.setting("--passphrase-file", key="organise.passphrase_file")
@options.host_maddrs_option("Where to listen; port 0 is any free one.")
@options.setting("--announce-maddrs", metavar="MULTIADDR")
@options.setting("--auto-relay")
@options.setting("--trusted-relays", key="network.relays", metavar="MULTIADDR")
@options.setting("--circuit-relay/--no-circuit-relay", key="network.circuit_relay")
@limit_option
@options.setting("--client-mode", key="network.client_mode")
@options.setting("--metrics", callback=options.parse_listen_address, metavar="[HOST:]PORT")
@options.setting("--samples", key="node.samples", metavar="ROWS")
@options.setting("--log-to", metavar="KIND:PLACE")
@options.setting("--notify", callback=parse_text, metavar="CMD")
@options.option(
    "--dashboard",
    callback=options.parse_listen_address,
    metavar="[HOST:]PORT",
    help="Serve the dashboard here.",
)
@dashboard_token_option(key="dashboard.token")
@dashboard_control_option(key="dashboard.control")
@options.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning"]),
    default="info",
    metavar="LEVEL",
    help="debug, info or warning.",
)
@options.option(
    "--log-format",
    key="log.format",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    help="json: one object a line, for programs (docs/metrics.md).",
)
def join(
    link: str | None,
    threads: int,
    log_level: str,
    log_format: str,
    dashboard: tuple[str, int] | None,
    dashboard_token: str,
    dashboard_control: bool,
    **fields: Any,
) -> None:
    """Run a node: join a run by LINK (with - it asks for it). Ctrl-C ends it and loses one step at most."""
    if not (link or fields["peers"] or fields["run"] or fields["contacts_url"]):
        link = _link_unless_run(fields["data_dir"])
    fields = _following(link, fields) if link else fields
    set_up_logging(log_level, log_format)
    allow_most()  # visitors and peers need descriptors
    note(fields["data_dir"])
    fields["limits"] = fields["limits"].changed({"threads": threads} if threads else {})
    settings = Settings(**fields)
    if settings.follow and settings.organise:
        raise UserError(
            Code.BAD_OPTION,
            "--follow: a node that organises goes nowhere, as another key organises the other run",
            "Leave out --follow, and start a node for the other run with its --run and --organise.",
        )
    for address in settings.peers:
        peer_of(address)  # before anything slow is loaded
    tell = show if log_format == FORMATS[0] else log_error
    begins("sfnode %s starts", sfnode.__version__)
    while True:
        beside = partial(shown, settings.data_dir, dashboard, dashboard_token, dashboard_control)
        with Narration(terminal=sys.stderr.isatty(), plain=log_format == FORMATS[0]) as narration:
            ended = _run(settings, tell, beside, narration)
        if not isinstance(ended, str):
            leave(ended)
        settings = _onward(settings, ended)


def _onward(settings: Settings, link: str) -> Settings:
    """Return the settings with which a node continues in the run that a link names.

    The node gets a new folder with the same key. The old run's base model, and options that name the old run,
    are left out.
    """
    from sfnode.node.following import next_folder

    folder = next_folder(settings.data_dir, read_link(link).run_id)
    note(folder)
    echo(f"going on in {folder}")
    left = {
        name: Settings.model_fields[name].default
        for name in ("run", "contacts_url", "model", "test", "validation", "alone")
    }
    return settings.model_copy(
        update=_following(link, left | {"data_dir": folder, "peers": (), "run_id": "", "invitation": ""})
    )


def _link_unless_run(folder: Path) -> str | None:
    """Return a link that the user types at a terminal; None if the folder has a run to continue.

    Raises UserError BAD_OPTION, which explains links, if there is neither a run nor a terminal.
    """
    if Layout(folder).manifest.exists():
        return None
    nothing = UserError(
        Code.BAD_OPTION,
        f"there is no run to join: you have named none, and {folder} holds none",
        "A link from somebody in a run is all that you need (`sfnode invite` prints it there):\n"
        "sfnode join sfnode:AZMB...                     with such a link (or -, to be asked for it)\n"
        "sfnode join https://HOST/run.json              with the page of a run\n"
        "sfnode init tickets.csv                        makes a run of your data, and says how it begins\n"
        "sfnode swarm                                   shows how it works on this machine alone",
    )
    if not sys.stdin.isatty():
        raise nothing
    echo(f"{nothing.what}.\n{nothing.fix}", err=True)
    return options.asked_link()


def _following(link: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return the options `fields`, completed with the peers, the run and the ticket of a link (SPEC N4,
    N5)."""
    if is_url(link):
        return fields | {"contacts_url": link}
    said = read_link(link)
    check_same_run(said, fields["run_id"])
    if said.url:
        fields = fields | {"contacts_url": said.url}
    shown = {"invitation": f"{said.ticket.invitation}:{said.ticket.secret.hex()}"} if said.ticket else {}
    return fields | {"peers": (*said.addresses, *fields["peers"]), "run_id": said.run_id.hex()} | shown


def _run(
    settings: Settings,
    tell: Callable[[UserError], object],
    beside: Callable[[], AbstractAsyncContextManager[None]],
    narration: Narration,
    passphrase: bytes | None = None,
) -> int | str:
    """Run the node to its end, within the block of `beside`. Return the exit status or, if the node continues
    in another run, the link to that run.

    `tell` is called with the error that ends the node. At a terminal the user is first asked for a missing
    passphrase.
    """
    import uvloop

    async def live() -> str | None:
        async with beside():
            return await _live(settings, narration, passphrase)

    try:
        sequel = progress.run(live(), uvloop.run)
    except UserError as error:
        narration.rest()
        may_ask = passphrase is None and settings.passphrase_file is None and sys.stdin.isatty()
        if error.code is Code.WRONG_PASSPHRASE and may_ask:
            return _run(settings, tell, beside, narration, asked())
        tell(error)
        return status_of(error)
    return sequel or DONE


async def _live(settings: Settings, narration: Narration, passphrase: bytes | None) -> str | None:
    """Run the node until a signal, a request through the control socket, or the end of its work. Return the
    link to the run in which the node continues; None if it does not."""
    from sfnode.daemon import Node

    async with Node(settings, make_transport=_transport, passphrase=passphrase) as node:
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, node.leave)
        _announce(node, narration)
        ending = Ending(node)
        watching = asyncio.create_task(ending.watch())
        await node.wait()
        watching.cancel()
        ending.farewell()
        return node.running.sequel


def _transport(settings: Settings, data_dir: DataDir, bootstrap: tuple[str, ...]) -> Transport:
    from sfnode.daemon import LIBP2P, libp2p

    with ended_at_once():
        import_module(LIBP2P)
    return libp2p(settings, data_dir, bootstrap)


NOISY_ROWS = (
    "Your rows stay on this machine, and the gradients that it tells have noise: `sfnode status` says, as "
    "epsilon, how much who collects these could find out about any one row (docs/security.md)."
)
OWN_ROWS = (
    "Your rows stay on this machine, but what it tells are mean gradients of at least 32 of them (of all, if "
    "you have fewer): who collects these could find out whether a text that they know is among your rows, "
    "and perhaps guess words of some (docs/security.md)."
)
"""Warning about what others could learn of a node's own rows from its updates, if these are made without
noise."""


def told_first(manifest: Manifest, *, own_rows: bool, noisy: bool = False) -> str:
    """Return a warning about what a node's updates reveal of its own rows. Return an empty text if the node
    has no rows of its own, and in a zeroth-order run, whose updates are one number each."""
    told = NOISY_ROWS if noisy else OWN_ROWS
    return told if own_rows and manifest.training.is_first_order else ""


def _announce(node: Node, narration: Narration) -> None:
    """Print that the node runs and how others join, and show its progress until its first update."""
    manifest = node.manifest
    narration.rest()
    if told := told_first(manifest, own_rows=bool(node.settings.data), noisy=node.settings.noisy):
        echo(told)
    echo(f"joined run {manifest.name} ({manifest.run_id.hex()[:16]}) as {node.settings.role}")
    if node.addresses():
        link = node.running.views.invitation().link
        echo(f"others join with (`sfnode invite` shows it again):\n  {command('sfnode', 'join', link)}")
    follow(node.status, narration)
