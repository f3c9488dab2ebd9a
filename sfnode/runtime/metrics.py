"""The node's status in the words of Prometheus: what `GET /metrics` answers, on the control socket or on TCP.

Every value is read from one `Status`, so that metrics never say anything else than `sfnode status`; a metric
is a line of `METRICS`, and docs/metrics.md is its documentation. This module counts nothing by itself.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from aiohttp import web
from prometheus_client import CollectorRegistry, exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sfnode.errors import Code, UserError
from sfnode.runtime.status import LinkStatus, Status

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


class Sample(NamedTuple):
    """One value and its labels."""

    value: float
    labels: Mapping[str, str] = {}


class Described(NamedTuple):
    """One metric: its name, what it says, and how it is read from a status."""

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


def _one(read: Callable[[Status], float | None]) -> Callable[[Status], Iterable[Sample]]:
    """A metric without labels; none at all while its value is unknown."""

    def samples(status: Status) -> Iterator[Sample]:
        value = read(status)
        if value is not None:
            yield Sample(float(value))

    return samples


def _each_link(read: Callable[[LinkStatus], float]) -> Callable[[Status], Iterable[Sample]]:
    """A value for each neighbour. One that is linked in both directions for a moment counts once."""

    def samples(status: Status) -> Iterator[Sample]:
        links = {link.peer: link for link in status.links}
        return (Sample(float(read(link)), {"peer": peer, "role": link.role}) for peer, link in links.items())

    return samples


def _info(status: Status) -> Iterator[Sample]:
    names = ("version", "run_id", "run_name", "role", "peer", "origin")
    yield Sample(1.0, {name: str(getattr(status, name)) for name in names})


def _state(status: Status) -> Iterator[Sample]:
    states = STATES if status.state in STATES else (*STATES, status.state)
    return (Sample(float(state == status.state), {"state": state}) for state in states)


OF_LINK = ("peer", "role")

METRICS: Sequence[Described] = (
    Described(
        "sfnode_info",
        "Always 1; its labels say which node this is.",
        _info,
        ("version", "run_id", "run_name", "role", "peer", "origin"),
    ),
    Described("sfnode_state", "1 for the state that the node is in, 0 for the others.", _state, ("state",)),
    Described("sfnode_uptime_seconds", "Since the process started.", _one(lambda s: s.uptime)),
    Described("sfnode_updates_known_total", "Updates in the log, everybody's.", _one(lambda s: s.known)),
    Described(
        "sfnode_update_budget", "Updates after which the run is complete.", _one(lambda s: s.update_budget)
    ),
    Described(
        "sfnode_updates_lacking",
        "Updates that neighbours have and this node is fetching.",
        _one(lambda s: s.lacking),
    ),
    Described("sfnode_epoch", "Epoch of the next update, from 0.", _one(lambda s: s.epoch)),
    Described("sfnode_epochs", "Epochs of the whole run.", _one(lambda s: s.epochs)),
    Described(
        "sfnode_own_updates_total", "Updates that this process has made.", _one(lambda s: s.own_updates)
    ),
    Described(
        "sfnode_own_updates_per_second",
        "Own updates per second, over the last ten seconds.",
        _one(lambda s: s.updates_per_second),
    ),
    Described(
        "sfnode_loss",
        "Training loss lately, a moving average, in nats; absent while there is none.",
        _one(lambda s: s.loss),
    ),
    Described("sfnode_feeds", "Feeds in the log.", _one(lambda s: len(s.feeds))),
    Described("sfnode_links", "Neighbours.", _one(lambda s: len(s.links))),
    Described(
        "sfnode_links_agreeing",
        "Neighbours whose last summary carried our digest of that moment.",
        _one(lambda s: sum(link.agrees for link in s.links)),
    ),
    Described(
        "sfnode_bytes_sent_total", "Bytes sent over all links since the start.", _one(lambda s: s.bytes_sent)
    ),
    Described(
        "sfnode_bytes_received_total",
        "Bytes received over all links since the start.",
        _one(lambda s: s.bytes_received),
    ),
    Described(
        "sfnode_segment_bytes_sent_total",
        "The part of the bytes sent that carried updates.",
        _one(lambda s: s.segment_bytes_sent),
    ),
    Described(
        "sfnode_updates_sent_total",
        "Updates sent, counted once for each link.",
        _one(lambda s: s.updates_sent),
    ),
    Described("sfnode_log_bytes", "Size of the update log on disk.", _one(lambda s: s.log_bytes)),
    Described(
        "sfnode_link_updates_known",
        "Updates that a neighbour knew by its last word.",
        _each_link(lambda link: link.known),
        OF_LINK,
    ),
    Described(
        "sfnode_link_agrees",
        "1 if a neighbour's last summary carried our digest of that moment, else 0.",
        _each_link(lambda link: link.agrees),
        OF_LINK,
    ),
    Described(
        "sfnode_link_bytes_sent_total",
        "Bytes sent over the link to a neighbour.",
        _each_link(lambda link: link.bytes_sent),
        OF_LINK,
    ),
    Described(
        "sfnode_link_bytes_received_total",
        "Bytes received over the link to a neighbour.",
        _each_link(lambda link: link.bytes_received),
        OF_LINK,
    ),
)
"""What contributions each origin has made is in `status --json`: a label for every key would be too many."""


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
        family.add_metric([sample.labels[name] for name in described.labels], sample.value)
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
