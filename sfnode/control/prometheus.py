"""Serves a node's status as Prometheus metrics: `GET /metrics`, on the control socket or on TCP.

Every value is read from one `Status`, so that metrics and `sfnode status` always agree. Each metric is an
entry of `METRICS`; docs/metrics.md documents them. This module counts nothing itself.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, NamedTuple

from aiohttp import web
from prometheus_client import exposition
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sfnode.control import web_server
from sfnode.control.web_server import only_known_hosts
from sfnode.errors import Code, UserError
from sfnode.schema.metrics import LOSS, REWARD, Trained, metric_of, trained_by
from sfnode.schema.node_state import NodeState
from sfnode.schema.organising import EpochEvaluation
from sfnode.schema.status import Status

PATH = "/metrics"

INFO = ("version", "run_id", "run_name", "role", "peer", "origin")
LINK = ("peer", "role")
"""Names of labels: of the metric sfnode_info (INFO), and of the metrics of a link (LINK)."""

ALARMS = ("SF012", "SF070", "SF071", "SF072", "SF073", "SF086")
"""Numbers of the errors that are shown as alarms of a run (`sfnode.organising.reporting.alarms`)."""


PAUSES = ("asked", "disk", "room", "hours", "idle", "mains", "not_while", "celsius", "memory", "mb_per_day")
"""Names of the reasons for a pause: the owner's request, a full disk, a device without room, and the names of
limits."""


class MetricSample(NamedTuple):
    """One value, with the values of its labels in the metric's order."""

    labels: tuple[str, ...]
    value: float


class Described(NamedTuple):
    """One metric: its name, its help text, the function that reads it from a status, and the names of its
    labels."""

    name: str
    text: str
    read: Callable[[Status], Iterable[MetricSample]]
    labels: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The metric's type. By Prometheus's convention names of counters end in _total."""
        return "counter" if self.name.endswith("_total") else "gauge"


def _info(status: Status) -> list[MetricSample]:
    """Return the sample of sfnode_info, which is always 1. A label without a value, such as the origin of a
    relay, is empty."""
    return [MetricSample(tuple(getattr(status, name) or "" for name in INFO), 1.0)]


def _flags(names: Iterable[str], true: Collection[str]) -> list[MetricSample]:
    """Return a sample for each name: 1 if it is in `true`, else 0. Without the samples of 0, Prometheus would
    go on showing a state that has ended."""
    return [MetricSample((name,), float(name in true)) for name in names]


def _alarms(status: Status) -> list[MetricSample]:
    """Return a sample for each alarm; an empty list in an open run."""
    return _flags(ALARMS if status.organised else (), {alarm.code for alarm in status.alarms})


def _trained(status: Status, trained: Trained) -> float | None:
    """Return the value of `trained`, loss or reward, on this node's mini-batches; None if the run trains the
    other quantity, or before the first update."""
    there = status.loss is not None and trained_by(status.task) is trained
    return trained.of(status.loss) if there and status.loss is not None else None


def _beside(found: EpochEvaluation, trained: Trained) -> float | None:
    """Return the value of `trained`, loss or reward, in an evaluation; None if its run trains the other
    quantity."""
    return trained.of(found.loss) if metric_of(found.metric).trained is trained else None


Labelled = Iterable[tuple[tuple[str, ...], Any]]
"""Parts of a status, such as its links, each with the values of its labels."""


def _each(
    parts: Callable[[Status], Labelled], *labels: str
) -> Callable[[str, str | Callable[[Any], float | None], str], Described]:
    """Return a constructor of metrics that have a sample for each of these parts of a status.

    The value of a sample is a field or a function of a part. There is no sample if the part does not exist or
    the value is None.
    """

    def metric(name: str, value: str | Callable[[Any], float | None], text: str) -> Described:
        read = attrgetter(value) if isinstance(value, str) else value

        def samples(status: Status) -> list[MetricSample]:
            found = [(named, read(part)) for named, part in parts(status)]
            return [MetricSample(named, float(one)) for named, one in found if one is not None]

        return Described(name, text, samples, labels)

    return metric


def _results(status: Status) -> Labelled:
    """Return the organiser's results on four models: the base model, measured like the last seal; the
    calibrated base model; the last seal; and the best seal."""
    health = status.organised.health if status.organised else None
    names = {"base": "base", "calibrated": "calibrated", "best": "best", "last": "latest"}
    told = ((of, getattr(health, name, None)) for of, name in names.items())
    return [((found.metric, of), found) for of, found in told if found]


_of_node = _each(lambda status: [((), status)])
_of_machine = _each(lambda status: [((), status.machine)] if status.machine else [])
_of_device = _each(lambda status: [((one.name,), one) for one in status.devices], "device")
_of_gpu = _each(
    lambda status: [((one.name, one.device), one) for one in (status.machine.gpus if status.machine else ())],
    *("gpu", "device"),
)
_of_result = _each(_results, "name", "of")
_of_run = _each(lambda status: [((), status.organised)] if status.organised else [])
_of_link = _each(lambda status: {(one.peer, one.role): one for one in status.links}.items(), *LINK)
"""Constructor of the metrics of links. If there are two links with one peer, only the later link has
samples."""


# fmt: off
METRICS: Sequence[Described] = (
    Described("sfnode_info", "Always 1; its labels say which node this is.", _info, INFO),
    Described("sfnode_state", "1 for the state that the node is in, 0 for the others.",
              lambda s: _flags([state.value for state in NodeState], (s.state.value,)), ("state",)),
    _of_node("sfnode_uptime_seconds", "uptime", "Since the process started."),
    _of_node("sfnode_updates_known_total", "known", "Updates in the log, of all origins."),
    _of_node("sfnode_update_budget", "update_budget", "Updates after which the run is complete."),
    _of_node("sfnode_updates_lacking", "lacking",
             "Updates that neighbours have announced and that have not arrived yet."),
    _of_node("sfnode_epoch", "epoch", "Epoch of the next update, from 0."),
    _of_node("sfnode_epochs", "epochs", "Epochs of the whole run."),
    _of_node("sfnode_own_updates_total", "own_updates", "Updates that this process has made."),
    _of_node("sfnode_contributed_total", "contributed",
             "Updates of the node's origin in the log, over all its starts and incarnations."),
    _of_node("sfnode_own_updates_per_second", "updates_per_second",
             "Own updates per second, over the last ten seconds."),
    _of_node("sfnode_loss", lambda s: _trained(s, LOSS),
             "Recent training loss, a moving average, in nats; absent while there is none."),
    _of_node("sfnode_reward", lambda s: _trained(s, REWARD),
             "Recent mean reward in training, a moving average; of reward runs, in place of the loss."),
    _of_node("sfnode_drift", lambda s: s.drift.distance if s.drift else None,
             "Distance of the weights from the base, relative to its norm, when this node last evaluated."),
    _of_node("sfnode_drift_kl", lambda s: s.drift.kl if s.drift else None,
             "KL from the base model on neutral text, in nats a token, at the same time."),
    _of_node("sfnode_feeds", "feed_count", "Feeds in the log."),
    _of_node("sfnode_links", lambda s: len(s.links), "Neighbours."),
    _of_node("sfnode_links_agreeing", lambda s: sum(link.agrees for link in s.links),
             "Neighbours whose last summary carried our digest at that moment."),
    _of_node("sfnode_bytes_sent_total", "bytes_sent", "Bytes sent over all links since the start."),
    _of_node("sfnode_bytes_received_total", "bytes_received",
             "Bytes received over all links since the start."),
    _of_node("sfnode_segment_bytes_sent_total", "segment_bytes_sent",
             "The part of the bytes sent that carried updates."),
    _of_node("sfnode_updates_sent_total", "updates_sent", "Updates sent, counted once for each link."),
    _of_node("sfnode_log_bytes", "log_bytes", "Size of the update log on disk."),
    Described("sfnode_paused", "1 while the node pauses for this reason, else 0.",
              lambda s: _flags(PAUSES, s.paused_by), ("reason",)),
    _of_machine("sfnode_cpu_cores", "cpu",
                "Cores that the node and its network daemon keep busy, over the last ten seconds."),
    _of_machine("sfnode_cpu_cores_allowed", "cores", "Cores that the node may use."),
    _of_machine("sfnode_memory_bytes", "memory",
                "Resident memory of the node and its network daemon."),
    _of_device("sfnode_device_updates_total", "updates",
               "Updates that a device has measured since the start."),
    _of_device("sfnode_device_update_seconds", "seconds",
               "Time in which a device measures an update, averaged; absent before the first one."),
    _of_device("sfnode_device_failed", lambda device: device.problem is not None,
               "1 while a device has failed and the others go on without it, else 0."),
    _of_gpu("sfnode_gpu_memory_bytes", "memory", "Memory of the GPU that the node holds."),
    _of_gpu("sfnode_gpu_busy", "busy", "Share of the time in which the GPU was busy, with whatever."),
    _of_gpu("sfnode_gpu_celsius", "celsius", "Temperature of the GPU."),
    _of_gpu("sfnode_gpu_watts", "watts", "Power that the GPU draws."),
    _of_result("sfnode_metric", "value", "Published result on the validation rows: of the "
               "base model, as it is compared and calibrated, the best seal, the last one."),
    _of_result("sfnode_metric_low", "low", "Lower end of its 95 % confidence interval."),
    _of_result("sfnode_metric_high", "high", "Upper end of it."),
    _of_result("sfnode_metric_loss", lambda found: _beside(found, LOSS), "Loss on the same rows, in nats."),
    _of_result("sfnode_metric_reward", lambda found: _beside(found, REWARD),
               "Mean reward of the answers to the same rows; of reward runs, in place of the loss."),
    Described("sfnode_alarm", "1 while this numbered error stands in the run, else 0.", _alarms, ("code",)),
    _of_run("sfnode_epochs_sealed_total", "sealed", "Epochs that the organiser has sealed."),
    _of_run("sfnode_updates_counted", "counted", "Updates that count by the seals so far."),
    _of_run("sfnode_updates_behind", "behind", "Updates that the organiser has named and that are not here."),
    _of_run("sfnode_quota_left", "room",
            "Updates that this node may still make in the open epoch; of members only."),
    _of_run("sfnode_seal_age_seconds", "seconds_since_seal",
            "Since a seal has come; absent while none has since the start."),
    _of_link("sfnode_link_updates_known", "known", "Updates that a neighbour knew in its last report."),
    _of_link("sfnode_link_agrees", "agrees",
             "1 if a neighbour's last summary carried our digest at that moment, else 0."),
    _of_link("sfnode_link_bytes_sent_total", "bytes_sent", "Bytes sent over the link to a neighbour."),
    _of_link("sfnode_link_bytes_received_total", "bytes_received",
             "Bytes received over the link to a neighbour."),
)
# fmt: on
"""All metrics. The contributions of origins are only in `GET /views/origins`: with a label for each origin,
Prometheus would have to store too many time series."""


def _family(described: Described, status: Status) -> Metric:
    make = CounterMetricFamily if described.kind == "counter" else GaugeMetricFamily
    family = make(described.name, described.text, labels=described.labels)
    for sample in described.read(status):
        family.add_metric(sample.labels, sample.value)
    return family


def route(status: Callable[[], Status]) -> web.RouteDef:
    """Return the route `GET /metrics`, which answers in the client's preferred text format."""

    async def metrics(request: web.Request) -> web.Response:
        encode, kind = exposition.choose_encoder(request.headers.get("Accept", ""))
        now: Any = status()  # one status for all values
        families: Any = SimpleNamespace(collect=lambda: [_family(one, now) for one in METRICS])
        return web.Response(body=encode(families), headers={"Content-Type": kind})

    return web.get(PATH, metrics)


async def serve(status: Callable[[], Status], host: str, port: int) -> Callable[[], Awaitable[None]]:
    """Serve `GET /metrics`, and nothing else, on TCP. Return the function that stops it.

    Refuses requests that pages of other sites send, and host names other than `host`, this machine's name,
    localhost and IP addresses. Raises UserError PORT_IN_USE or BAD_OPTION.
    """
    application = web.Application(middlewares=[only_known_hosts(host)])
    application.add_routes([route(status)])
    try:
        listener = web_server.bind(host, port)
    except OSError as error:
        raise _cannot_listen(host, port, error) from error
    return await web_server.serve(application, listener)


def _cannot_listen(host: str, port: int, error: OSError) -> UserError:
    if error.errno == errno.EADDRINUSE:
        return UserError(
            Code.PORT_IN_USE,
            f"another program already listens on {host}:{port}, where metrics should be served",
            "Choose another port with --metrics.",
        )
    return UserError(
        Code.BAD_OPTION,
        f"metrics cannot be served on {host}:{port}: {error.strerror or error}",
        "Give --metrics a port above 1023 and an address of this machine, or the port alone.",
    )
