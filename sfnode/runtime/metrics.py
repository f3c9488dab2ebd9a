"""The node's status in the words of Prometheus: what `GET /metrics` answers, on the control socket or on TCP.

Every value is read from one `Status`, so that metrics never say anything else than `sfnode status`; a metric
is a line of `METRICS`, and docs/metrics.md is its documentation. This module counts nothing by itself.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple, Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sfnode.errors import Code, UserError
from sfnode.runtime.status import Status

STATES = (
    "starting",
    "catching-up",
    "asking",
    "training",
    "paused",
    "finishing",
    "idle",
    "complete",
)
"""The words of `Status.state`. All are exposed, as one that vanished would look like one that lasts."""

STOP_GRACE = 0.1
"""Seconds that a scrape under way has when the node stops."""

PATH = "/metrics"


INFO = ("version", "run_id", "run_name", "role", "peer", "origin")
LINK = ("peer", "role")


class Sample(NamedTuple):
    """One value, and those of its labels in the order in which the metric names them."""

    labels: tuple[str, ...]
    value: float


class Described(NamedTuple):
    """One metric: its name, what it says, how it is read from a status, and what its labels are."""

    name: str
    text: str
    read: Callable[[Status], Iterable[Sample]]
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """Prometheus's convention: what counts up ends in _total."""
        return "counter" if self.name.endswith("_total") else "gauge"


class Node(Protocol):
    """What is asked of a node."""

    def status(self) -> Status: ...


def _info(status: Status) -> list[Sample]:
    return [Sample(tuple(str(getattr(status, name)) for name in INFO), 1.0)]


def _state(status: Status) -> list[Sample]:
    states = STATES if status.state in STATES else (*STATES, status.state)
    return [Sample((state,), float(state == status.state)) for state in states]


def _of_node(name: str, value: str | Callable[[Status], float], text: str) -> Described:
    """A field of the status, or what is computed from it; absent while it is unknown."""
    read = attrgetter(value) if isinstance(value, str) else value

    def samples(status: Status) -> list[Sample]:
        found = read(status)
        return [] if found is None else [Sample((), float(found))]

    return Described(name, text, samples)


def _of_link(name: str, field: str, text: str) -> Described:
    """A field of every neighbour. One that is linked in both directions for a moment counts once."""

    def samples(status: Status) -> list[Sample]:
        links = {(link.peer, link.role): float(getattr(link, field)) for link in status.links}
        return [Sample(labels, value) for labels, value in links.items()]

    return Described(name, text, samples, LINK)


# fmt: off
METRICS: Sequence[Described] = (
    Described("sfnode_info", "Always 1; its labels say which node this is.", _info, INFO),
    Described("sfnode_state", "1 for the state that the node is in, 0 for the others.", _state, ("state",)),
    _of_node("sfnode_uptime_seconds", "uptime", "Since the process started."),
    _of_node("sfnode_updates_known_total", "known", "Updates in the log, everybody's."),
    _of_node("sfnode_update_budget", "update_budget", "Updates after which the run is complete."),
    _of_node("sfnode_updates_lacking", "lacking", "Updates that neighbours have and this node is fetching."),
    _of_node("sfnode_epoch", "epoch", "Epoch of the next update, from 0."),
    _of_node("sfnode_epochs", "epochs", "Epochs of the whole run."),
    _of_node("sfnode_own_updates_total", "own_updates", "Updates that this process has made."),
    _of_node("sfnode_contributed_total", "contributed",
             "Updates of its feed in the log, over all its starts."),
    _of_node("sfnode_own_updates_per_second", "updates_per_second",
             "Own updates per second, over the last ten seconds."),
    _of_node("sfnode_loss", "loss",
             "Training loss lately, a moving average, in nats; absent while there is none."),
    _of_node("sfnode_feeds", "feed_count", "Feeds in the log."),
    _of_node("sfnode_links", lambda s: len(s.links), "Neighbours."),
    _of_node("sfnode_links_agreeing", lambda s: sum(link.agrees for link in s.links),
             "Neighbours whose last summary carried our digest of that moment."),
    _of_node("sfnode_bytes_sent_total", "bytes_sent", "Bytes sent over all links since the start."),
    _of_node("sfnode_bytes_received_total", "bytes_received",
             "Bytes received over all links since the start."),
    _of_node("sfnode_segment_bytes_sent_total", "segment_bytes_sent",
             "The part of the bytes sent that carried updates."),
    _of_node("sfnode_updates_sent_total", "updates_sent", "Updates sent, counted once for each link."),
    _of_node("sfnode_log_bytes", "log_bytes", "Size of the update log on disk."),
    _of_link("sfnode_link_updates_known", "known", "Updates that a neighbour knew by its last word."),
    _of_link("sfnode_link_agrees", "agrees",
             "1 if a neighbour's last summary carried our digest of that moment, else 0."),
    _of_link("sfnode_link_bytes_sent_total", "bytes_sent", "Bytes sent over the link to a neighbour."),
    _of_link("sfnode_link_bytes_received_total", "bytes_received",
             "Bytes received over the link to a neighbour."),
)
# fmt: on
"""What each origin has contributed is told by `views`: a label for every key would be too many."""


class StatusCollector(Collector):
    """Gives prometheus-client the metrics of the status as of the scrape."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        for described in METRICS:
            yield _family(described, status)

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that registering asks for no status."""
        return iter(())


def _family(described: Described, status: Status) -> Metric:
    make = CounterMetricFamily if described.kind == "counter" else GaugeMetricFamily
    family = make(described.name, described.text, labels=described.labels)
    for sample in described.read(status):
        family.add_metric(sample.labels, sample.value)
    return family


def route(node: Node) -> web.RouteDef:
    """`GET /metrics`, in the text format that the asker prefers."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(StatusCollector(node.status))

    async def metrics(request: web.Request) -> web.Response:
        encode, kind = exposition.choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": kind})

    return web.get(PATH, metrics)


async def serve(node: Node, host: str, port: int) -> Callable[[], Awaitable[None]]:
    """Answer `GET /metrics`, and nothing else, on TCP; returns the function that stops it.

    Raises UserError PORT_IN_USE or BAD_OPTION.
    """
    application = web.Application()
    application.add_routes([route(node)])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=STOP_GRACE)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise _cannot_listen(host, port, error) from error
    return runner.cleanup


def _cannot_listen(host: str, port: int, error: OSError) -> UserError:
    if error.errno == errno.EADDRINUSE:
        return UserError(
            Code.PORT_IN_USE,
            f"another program already listens on {host}:{port}, where metrics should be",
            "Choose another port with --metrics.",
        )
    return UserError(
        Code.BAD_OPTION,
        f"metrics cannot be served on {host}:{port}: {error.strerror or error}",
        "Give --metrics a port above 1023 and an address of this machine, or the port alone.",
    )
