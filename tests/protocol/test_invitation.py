"""Invitations: a written link can be read, and a link with a typo is refused (SPEC N1-N6)."""

from __future__ import annotations

import re
import string
import subprocess
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfprotocol import invitation
from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.invitation import (
    MAX_ADDRESSES,
    MAX_LINK,
    MAX_PEERS,
    PLAIN,
    Contact,
    Invitation,
    NewerLinkError,
    Ticket,
)
from tests.protocol.vectors.plain import load

VECTORS = load("invitations.json")
ID = st.text(string.ascii_letters + string.digits + "_-", min_size=1, max_size=64)
PLAIN_TEXT = st.from_regex(rf"[{PLAIN}]{{1,60}}", fullmatch=True)
ADDRESS = PLAIN_TEXT.map("/{}".format)
ADDRESSES = st.lists(ADDRESS, min_size=1, max_size=MAX_ADDRESSES, unique=True).map(tuple)
CONTACT = st.builds(Contact, ID, ADDRESSES)
INVITATIONS = st.builds(
    Invitation,
    protocol=st.integers(1, 2**32 - 1),
    run_id=st.binary(min_size=32, max_size=32),
    contacts=st.lists(CONTACT, min_size=1, max_size=3, unique_by=lambda c: c.peer).map(tuple),
    ticket=st.none() | st.builds(Ticket, st.integers(1, 2**31 - 1), st.binary(min_size=16, max_size=32)),
    url=st.just("") | st.just("https://run.example") | PLAIN_TEXT.map("http://127.0.0.1:8080/{}".format),
)


ONE = invitation.invite(1, bytes(range(32)), ["/ip4/203.0.113.7/tcp/31337/p2p/QmA"])


@pytest.mark.parametrize("vector", VECTORS["valid"])
def test_vectors_are_written_and_read(vector: dict[str, Any]) -> None:
    said = invitation.invite(vector["protocol"], bytes.fromhex(vector["run_id"]), vector["addresses"])
    if vector["ticket"]:
        number, secret = vector["ticket"]
        said = replace(said, ticket=Ticket(number, bytes.fromhex(secret)))
    said = replace(said, url=vector["url"])
    assert invitation.write(said) == vector["link"]
    assert invitation.read(vector["link"]) == said
    assert list(said.addresses) == vector["addresses"]


@pytest.mark.parametrize("vector", VECTORS["invalid"], ids=lambda vector: vector["name"])
def test_vectors_that_are_no_links_are_refused_for_the_rule_they_break(vector: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError) as refusal:
        invitation.read(vector["link"])
    assert refusal.value.rule == vector["rule"]
    assert isinstance(refusal.value, NewerLinkError) == (vector["name"] == "of a later version")


@given(INVITATIONS)
def test_every_invitation_survives_its_encoding(said: Invitation) -> None:
    link = invitation.write(said)
    assert invitation.read(link) == said
    assert invitation.read(f"\n {link}\t") == said
    assert invitation.invite(said.protocol, said.run_id, said.addresses).run_id == said.run_id


@given(INVITATIONS, st.data())
def test_a_link_with_a_typo_is_refused_by_its_checksum(said: Invitation, data: st.DataObject) -> None:
    link = invitation.write(said)
    at = data.draw(st.integers(len(invitation.SCHEME), len(link) - 1))
    kind = data.draw(st.sampled_from(["other", "missing", "doubled", "swapped"]))
    other = data.draw(st.sampled_from(string.ascii_letters + string.digits + "_-"))
    changed = {
        "other": link[:at] + other + link[at + 1 :],
        "missing": link[:at] + link[at + 1 :],
        "doubled": link[:at] + link[at] + link[at:],
        "swapped": link[: at - 1] + link[at] + link[at - 1] + link[at + 1 :],
    }[kind]
    if changed == link:
        return
    with pytest.raises(RemoteProtocolError) as refusal:
        invitation.read(changed)
    # the last character has bits to spare: what differs in them alone is not canonical
    assert refusal.value.rule == "N1" or (refusal.value.rule == "N3" and at == len(link) - 1)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    for link in (text, invitation.SCHEME + text):
        try:
            said = invitation.read(link)
        except RemoteProtocolError:
            continue
        assert invitation.write(said) == link.strip()


def test_of_many_addresses_the_first_are_taken() -> None:
    many = [f"/ip4/203.0.113.{way}/tcp/1/p2p/Qm{peer}" for peer in range(20) for way in range(10)]
    said = invitation.invite(1, bytes(32), many)
    assert [contact.peer for contact in said.contacts] == [f"Qm{peer}" for peer in range(MAX_PEERS)]
    assert all(len(contact.addresses) == MAX_ADDRESSES for contact in said.contacts)
    assert said.addresses[0] == many[0]
    assert len(invitation.write(said)) <= MAX_LINK


def test_addresses_that_no_link_can_hold_are_left_out() -> None:
    odd = [f"/dns/{'a' * 200}/tcp/1/p2p/QmA", "/dns/a b/tcp/1/p2p/QmA", "nonsense", "/dns/a/p2p/Q A"]
    odd += ["/dns/$(id)/tcp/1/p2p/QmA"]
    assert invitation.invite(1, bytes(range(32)), [*odd, *ONE.addresses]) == ONE


@pytest.mark.parametrize(
    "said",
    [
        Invitation(1, bytes(32), ()),
        Invitation(0, bytes(32), ONE.contacts),
        Invitation(1, bytes(31), ONE.contacts),
        Invitation(1, bytes(32), (Contact("Qm A", ("/a",)),)),
        Invitation(1, bytes(32), (Contact("QmA", ("a",)),)),
        Invitation(1, bytes(32), ONE.contacts, Ticket(0, bytes(16))),
        Invitation(1, bytes(32), ONE.contacts, Ticket(1, bytes(15))),
        Invitation(1, bytes(32), ONE.contacts, Ticket(1, bytes(33))),
        Invitation(1, bytes(32), ONE.contacts, url="ftp://run.example/run.json"),
        Invitation(1, bytes(32), ONE.contacts, url="https://run.example/a b"),
        Invitation(1, bytes(32), ONE.contacts, url=f"https://run.example/{'a' * 300}"),
        Invitation(1, bytes(32), tuple(Contact(f"Qm{n}", (f"/{'a' * 199}",)) for n in range(8))),
    ],
)
def test_an_invitation_that_no_reader_would_accept_is_not_written(said: Invitation) -> None:
    with pytest.raises(LocalProtocolError):
        invitation.write(said)


def test_a_link_to_one_public_address_is_short() -> None:
    said = invitation.invite(1, bytes(32), [f"/ip4/203.0.113.7/tcp/31337/p2p/Qm{'a' * 44}"])
    assert len(invitation.write(said)) <= 170


def test_nothing_that_a_link_names_means_anything_to_a_shell() -> None:
    every = "".join(map(chr, range(0x20, 0x7F)))
    plain = re.findall(f"[{PLAIN}]", every)
    assert not set("|&;<>()$`\\\"' \t\n*?[]#!{}^") & set(plain)
    word = f"https://run.example/{''.join(plain)}"
    assert invitation.is_url(word)
    for letter in set(every) - set(plain):
        assert not invitation.is_url(f"https://run.example/{letter}")
        assert not invitation.is_url(f"https://{letter}.example/")
        assert invitation.invite(1, bytes(32), [f"/dns/{letter}/p2p/QmA"]).contacts == ()
    echoed = subprocess.run(["sh", "-c", f"printf %s {word}"], capture_output=True, text=True, check=True)
    assert echoed.stdout == word
