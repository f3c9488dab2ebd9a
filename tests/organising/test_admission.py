"""Tests of admissions: which join requests are granted without the owner, and which wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfnode.organising.admission import (
    MAX_PENDING,
    MAX_PENDING_PER_LINK,
    PENDING_TIME,
    PendingJoinRequests,
    invitation_key,
    solve,
    voucher_message,
    work,
)
from sfnode.organising.policy import Admission, OrganiserPolicy
from sfprotocol import signing
from sfprotocol.decisions import Admit, Invite, Recorded, RevokeInvitation
from sfprotocol.messages import JoinRequest
from sfprotocol.run_state import RunState
from tests.organising.bench import RUN_ID, UNEVALUATED, feed_of

SECRET = bytes(range(16))
POLICY = replace(UNEVALUATED, admission_burst=3, admissions_per_minute=6, work_bits=8, quota=77)
ANYONE = replace(POLICY, admission=Admission.ANYONE)
APPROVE = replace(POLICY, admission=Admission.APPROVE)
LINKS = replace(POLICY, admission=Admission.LINKS)


def never() -> bool:
    return False


def plain(name: str) -> JoinRequest:
    return JoinRequest(feed_of(name).origin, 0, 0, b"", bytes(64))


def working(name: str, bits: int = 8) -> JoinRequest:
    origin = feed_of(name).origin
    nonce = solve(RUN_ID, origin, bits, never)
    return JoinRequest(origin, nonce, 0, b"", bytes(64))


def invited(name: str, key: Ed25519PrivateKey, number: int = 1) -> JoinRequest:
    origin = feed_of(name).origin
    return JoinRequest(origin, 0, number, key.sign(voucher_message(RUN_ID, origin)), bytes(64))


def run_state_with(uses: int) -> tuple[RunState, Ed25519PrivateKey]:
    """Return a run with one invitation, and its key."""
    key = invitation_key(RUN_ID, SECRET)
    run_state = RunState(budget=1000, rate=1)
    run_state.apply(Recorded(Invite(key.public_key().public_bytes_raw(), uses)))
    return run_state, key


def granted(join_requests: PendingJoinRequests, run_state: RunState, now: float = 0.0) -> list[Admit]:
    """Grant all join requests that need no owner; return the admissions."""
    admits = []
    while admit := join_requests.next(run_state, now):
        run_state.apply(Recorded(admit))
        admits.append(admit)
    return admits


@pytest.mark.parametrize(
    ("policy", "admitted", "waiting"),
    [
        (LINKS, {"invited"}, set()),
        (APPROVE, {"invited"}, {"plain", "working"}),
        (ANYONE, {"invited", "working"}, set()),
    ],
)
def test_the_policy_says_who_is_admitted_and_who_waits(
    policy: OrganiserPolicy, admitted: set[str], waiting: set[str]
) -> None:
    run_state, key = run_state_with(5)
    join_requests = PendingJoinRequests(RUN_ID, policy)
    for join_request in (plain("plain"), working("working"), invited("invited", key)):
        join_requests.hear(join_request, "peer", run_state, 0.0)
    names = {feed_of(name).origin: name for name in ("plain", "working", "invited")}
    admits = granted(join_requests, run_state)
    assert {names[admit.origin] for admit in admits} == admitted
    assert Admit(feed_of("invited").origin, 77, 1) in admits, "with the quota, and by the invitation"
    assert {names[join_request.origin] for join_request in join_requests.waiting(run_state, 0.0)} == waiting


def test_an_invitation_admits_as_many_as_it_has_uses() -> None:
    (run_state, key), join_requests = run_state_with(2), PendingJoinRequests(RUN_ID, LINKS)
    for name in ("anne", "bob", "carol"):
        join_requests.hear(invited(name, key), "peer", run_state, 0.0)
    assert len(granted(join_requests, run_state)) == 2
    assert not join_requests.waiting(run_state, 0.0)


def test_a_revoked_invitation_admits_nobody() -> None:
    (run_state, key), join_requests = run_state_with(2), PendingJoinRequests(RUN_ID, LINKS)
    join_requests.hear(invited("anne", key), "peer", run_state, 0.0)
    run_state.apply(Recorded(RevokeInvitation(0, 0)))
    join_requests.hear(invited("bob", key), "peer", run_state, 0.0)
    assert not granted(join_requests, run_state)


def test_a_voucher_is_for_one_origin_one_run_and_one_invitation() -> None:
    (run_state, key), join_requests = run_state_with(5), PendingJoinRequests(RUN_ID, LINKS)
    stolen = replace(invited("anne", key), origin=feed_of("mallory").origin)
    elsewhere = invited("mallory", invitation_key(bytes(32), SECRET))
    for join_request in (stolen, elsewhere, invited("mallory", key, 2), invited("mallory", key, 0)):
        join_requests.hear(join_request, "peer", run_state, 0.0)
    assert not granted(join_requests, run_state)


def test_admissions_come_at_the_rate_of_the_policy_in_their_order() -> None:
    run_state, join_requests = RunState(budget=1000, rate=1), PendingJoinRequests(RUN_ID, ANYONE)
    names = [f"newcomer {number}" for number in range(6)]
    for name in names:
        join_requests.hear(working(name), "peer", run_state, 0.0)
    origins = [feed_of(name).origin for name in names]
    assert [admit.origin for admit in granted(join_requests, run_state)] == origins[:3]
    assert not granted(join_requests, run_state, 9.0)
    assert [admit.origin for admit in granted(join_requests, run_state, 20.0)] == origins[3:5]


def test_one_link_does_not_push_out_what_others_have_brought() -> None:
    run_state, join_requests = RunState(budget=1000, rate=1), PendingJoinRequests(RUN_ID, APPROVE)
    join_requests.hear(plain("honest"), "peer", run_state, 0.0)
    for number in range(2 * MAX_PENDING):
        join_requests.hear(plain(f"invented {number}"), "flooder", run_state, 1.0)
    waiting = [join_request.origin for join_request in join_requests.waiting(run_state, 2.0)]
    assert len(waiting) == 1 + MAX_PENDING_PER_LINK
    assert feed_of("honest").origin in waiting


def test_what_waits_is_bounded_in_all_and_the_oldest_goes_first() -> None:
    run_state, join_requests = RunState(budget=1000, rate=1), PendingJoinRequests(RUN_ID, APPROVE)
    for number in range(MAX_PENDING + 5):
        join_requests.hear(plain(f"newcomer {number}"), f"peer {number}", run_state, 0.0)
    waiting = [join_request.origin for join_request in join_requests.waiting(run_state, 0.0)]
    assert waiting[0] == feed_of("newcomer 5").origin
    assert len(waiting) == MAX_PENDING


def test_a_join_request_that_is_not_repeated_expires() -> None:
    run_state, join_requests = RunState(budget=1000, rate=1), PendingJoinRequests(RUN_ID, APPROVE)
    for name in ("anne", "bob"):
        join_requests.hear(plain(name), "peer", run_state, 0.0)
    join_requests.hear(plain("anne"), "other", run_state, PENDING_TIME - 1)
    assert [p.origin for p in join_requests.waiting(run_state, PENDING_TIME + 1)] == [feed_of("anne").origin]


def test_who_is_a_member_does_not_wait() -> None:
    run_state, join_requests = RunState(budget=1000, rate=1), PendingJoinRequests(RUN_ID, APPROVE)
    join_requests.hear(plain("anne"), "peer", run_state, 0.0)
    run_state.apply(Recorded(Admit(feed_of("anne").origin, 10, 0)))
    join_requests.hear(plain("anne"), "peer", run_state, 1.0)
    assert not join_requests.waiting(run_state, 1.0)


def test_work_is_for_one_origin_and_one_run() -> None:
    origin = feed_of("anne").origin
    nonce = solve(RUN_ID, origin, 12, never)
    assert work(RUN_ID, origin, nonce) >= 12
    assert work(RUN_ID, origin, 0) == 0
    others = (work(bytes(32), origin, nonce), work(RUN_ID, feed_of("bob").origin, nonce))
    assert max(others) < 12


def test_solving_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signing, "_ASK_EVERY", 10)
    answers = iter([False, False, True])
    assert solve(RUN_ID, feed_of("anne").origin, 250, lambda: next(answers)) is None
    assert not list(answers)


@pytest.mark.parametrize("length", [0, 15, 33])
def test_a_secret_has_16_to_32_bytes(length: int) -> None:
    with pytest.raises(ValueError, match="16 to 32"):
        invitation_key(RUN_ID, bytes(length))
