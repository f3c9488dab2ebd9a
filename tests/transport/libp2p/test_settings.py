"""The command line of p2pd, kept ports, and hivemind's log messages."""

from __future__ import annotations

import logging
import logging.handlers
from pathlib import Path

import pytest

from sfnode.transport.libp2p.settings import HivemindSettings, kept_ports, p2pd_flags, relays_of, same_ports
from sfnode.transport.libp2p.transport import _quieten_hivemind


def test_messages_of_hivemind_reach_nobody_but_a_debugger(monkeypatch):
    _quieten_hivemind()
    seen = logging.handlers.BufferingHandler(capacity=10)
    monkeypatch.setattr(logging.getLogger(), "handlers", [seen])
    noisy = logging.getLogger("hivemind.dht.node")
    ours = logging.getLogger("sfnode.transport.libp2p.calls")
    for level, expected in ((logging.INFO, []), (logging.DEBUG, [("DEBUG", "hivemind.dht.node: noise")])):
        monkeypatch.setattr(ours, "level", level)
        logging.getLogger().manager._clear_cache()
        noisy.warning("noise")
        assert [(record.levelname, record.getMessage()) for record in seen.buffer] == expected


def test_a_warning_is_still_called_a_warning():
    assert logging.getLevelName(logging.WARNING) == "WARNING"


def flags_for(**changes):
    settings = HivemindSettings(identity_path=Path("key"), **changes)
    return p2pd_flags(settings, settings.host_maddrs, Path("control"), Path("no-relay"), relays_of(settings))


def test_a_node_on_loopback_does_not_touch_the_router():
    assert "-natPortMap=1" in flags_for()
    assert "-natPortMap=0" in flags_for(host_maddrs=("/ip4/127.0.0.1/tcp/0", "/ip6/::1/tcp/0"))


def test_auto_relay_trusts_each_bootstrap_peer_once_unless_told_whom():
    a, again, b, c = (f"/ip4/198.51.100.{n}/tcp/1/p2p/Qm{peer}" for n, peer in enumerate("AABC"))
    assert not any("trusted" in flag for flag in flags_for(bootstrap=(a,)))
    assert f"-trustedRelays={a},{b}" in flags_for(use_auto_relay=True, bootstrap=(a, again, b))
    assert f"-trustedRelays={c}" in flags_for(use_auto_relay=True, bootstrap=(a,), trusted_relays=(c,))
    assert "-relayDiscovery=0" in flags_for(use_auto_relay=True, bootstrap=(a,))
    assert "-relayDiscovery=0" not in flags_for(use_auto_relay=True)


def test_who_asks_to_be_relayed_is_taken_to_need_it_unless_he_says_otherwise():
    assert "-forceReachabilityPrivate" in flags_for(use_auto_relay=True)
    assert "-forceReachabilityPublic" in flags_for(use_auto_relay=True, force_reachability="public")
    assert not any("forceReachability" in flag for flag in flags_for())


def test_nobody_is_relayed_unless_the_node_is_to_be_a_circuit_relay():
    assert {"-f=no-relay", "-relay=0"} <= set(flags_for())
    for behind_nat in (flags_for(use_auto_relay=True), flags_for(use_auto_relay=True, client_mode=True)):
        assert {"-relay=1", "-relayService=0"} <= set(behind_nat)
        assert "-f=no-relay" not in behind_nat
    relaying = flags_for(circuit_relay=True)
    assert {"-relay=1", "-relayService=1"} <= set(relaying)
    bounds = ("MaxReservations", "MaxCircuits", "DataLimit", "TimeLimit", "BufferSize")
    assert all(any(flag.startswith(f"-relay{bound}=") for flag in relaying) for bound in bounds)


def test_a_client_listens_nowhere():
    flags = flags_for(client_mode=True)
    assert "-noListenAddrs" in flags
    assert not any("hostAddrs" in flag for flag in flags)


@pytest.mark.parametrize(
    ("kept", "hosts"),
    [
        ("/ip4/0.0.0.0/tcp/41\n/ip6/::/tcp/43\n", ("/ip4/0.0.0.0/tcp/41", "/ip6/::/tcp/7")),
        ("/ip6/::/tcp/43\n", ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/7")),
        ("/ip4/0.0.0.0/tcp/65536\n/ip4/0.0.0.0/tcp/0\nnonsense\n\n", ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/7")),
        ("/ip4/0.0.0.0/tcp/" + "9" * 5000, ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/7")),
        ("\u00e9", ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/7")),
    ],
)
def test_a_port_that_nobody_has_asked_for_stays_the_same_from_start_to_start(kept, hosts, tmp_path):
    file = tmp_path / "ports"
    file.write_text(kept)
    wanted = ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/7")
    assert kept_ports(HivemindSettings(identity_path=file, ports_path=file, host_maddrs=wanted)) == hosts
    assert kept_ports(HivemindSettings(identity_path=file, host_maddrs=wanted)) == wanted


def test_after_a_start_the_port_is_kept_unless_it_was_announced_otherwise():
    hosts = ("/ip4/0.0.0.0/tcp/0", "/ip4/127.0.0.1/udp/0/quic", "/ip6/::/tcp/7")
    ways = ["/ip4/198.51.100.9/tcp/999", "/ip4/10.0.0.2/tcp/41", "/ip4/127.0.0.1/udp/42/quic"]
    plain = HivemindSettings(identity_path=Path("key"), host_maddrs=hosts)
    assert same_ports(plain, ways) == ("/ip4/0.0.0.0/tcp/41", "/ip4/127.0.0.1/udp/42/quic", "/ip6/::/tcp/7")
    announced = HivemindSettings(identity_path=Path("key"), host_maddrs=hosts, announce_maddrs=("/x",))
    assert same_ports(announced, ways) == hosts
