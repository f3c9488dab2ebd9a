"""Join requests of newcomers: proofs of work, invitations, and which join requests are granted when.

The module serves both sides: the newcomer, who makes a request, and the organiser, who checks it. Signatures
of join requests are checked elsewhere, before the requests get here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sfnode.organising.policy import Admission, OrganiserPolicy
from sfprotocol import signing
from sfprotocol.decisions import Admit
from sfprotocol.invitation import SECRET_BYTES
from sfprotocol.messages import JoinRequest
from sfprotocol.rate_limit import Bucket
from sfprotocol.run_state import NEVER, RunState
from sfprotocol.signing import signed_by

MAX_PENDING = 1024
"""Maximum number of waiting join requests. Together they take 300 kB, and an owner can still look through
this many."""

MAX_PENDING_PER_LINK = 128
"""Maximum number of waiting join requests from one link, so that one neighbour cannot crowd out the
others."""

PENDING_TIME = 86_400.0
"""Seconds after which a waiting join request is dropped, unless the newcomer repeats it. The run's owner may
look only once a day."""

_INVITE, _VOUCHER = b"sfnode-invite", b"sfnode-voucher"


# -- proofs of work ------------------------------------------------------------------------------------


def work(run_id: bytes, origin: bytes, nonce: int) -> int:
    """Return the work that a nonce (1 to 2^64 - 1) proves: the number of leading zero bits of its hash; 0 for
    a nonce of 0."""
    return signing.WORK_BITS - signing.work(run_id, origin, nonce).bit_length() if nonce else 0


def solve(run_id: bytes, origin: bytes, bits: int, interrupted: Callable[[], bool]) -> int | None:
    """Return the first nonce that proves work of at least `bits` bits; None once `interrupted` returns True.
    On average 2^bits hashes are computed."""
    found = signing.solutions(run_id, origin, signing.work_bound(bits), count(1), interrupted)
    return next(found, None)


# -- invitations ---------------------------------------------------------------------------------------


def invitation_key(run_id: bytes, secret: bytes) -> Ed25519PrivateKey:
    """Return the private key of an invitation, whose public half an `Invite` publishes. Raises ValueError for
    a secret of a wrong length."""
    if not SECRET_BYTES[0] <= len(secret) <= SECRET_BYTES[1]:
        raise ValueError(f"the secret of an invitation has 16 to 32 bytes, not {len(secret)}")
    seed = hashlib.blake2b(secret, digest_size=32, key=run_id, person=_INVITE).digest()
    return Ed25519PrivateKey.from_private_bytes(seed)


def voucher_message(run_id: bytes, origin: bytes) -> bytes:
    """Return the message that an invitation's key signs for a newcomer."""
    return _VOUCHER + run_id + origin


def invited(run_id: bytes, join_request: JoinRequest, run_state: RunState) -> bool:
    """Return whether a join request has a valid voucher of an invitation that has uses left and is not
    revoked."""
    if not 0 < join_request.invitation <= len(run_state.invitations):
        return False
    invitation = run_state.invitations[join_request.invitation - 1]
    message = voucher_message(run_id, join_request.origin)
    usable = invitation.uses and invitation.revoked == NEVER
    return bool(usable) and signed_by(invitation.key, message, join_request.voucher)


# -- the organiser's side ------------------------------------------------------------------------------


@dataclass(slots=True)
class _Pending:
    join_request: JoinRequest
    via: str
    at: float
    """Time at which the join request was last received."""
    granted: bool
    """Whether the policy grants the join request without the owner, as of the last check."""


class PendingJoinRequests:
    """Join requests that wait for their turn or for the owner.

    Their number is bounded, in total and for each link; the oldest is dropped first. A repeated join request
    replaces the earlier one, but keeps its turn, and counts for the link on which the first one came.
    """

    def __init__(self, run_id: bytes, policy: OrganiserPolicy) -> None:
        self._run_id = run_id
        self.policy = policy
        self._pending: dict[bytes, _Pending] = {}
        """Join requests in the order of their first arrival, keyed by origin."""
        self._bucket = Bucket(float("inf"), 0.0)

    def hear(self, join_request: JoinRequest, via: str, run_state: RunState, now: float) -> None:
        """Keep a join request, unless it could never be granted."""
        granted = self._admits(join_request, run_state) is not None
        if run_state.member(join_request.origin) or not (granted or self._owner_is_asked):
            return
        known = self._pending.get(join_request.origin)
        if known:
            known.join_request, known.at, known.granted = join_request, now, granted
            return
        same_link = [origin for origin, pending in self._pending.items() if pending.via == via]
        if len(same_link) >= MAX_PENDING_PER_LINK:
            del self._pending[same_link[0]]
        if len(self._pending) >= MAX_PENDING:
            del self._pending[next(iter(self._pending))]
        self._pending[join_request.origin] = _Pending(join_request, via, now, granted)

    def waiting(self, run_state: RunState, now: float) -> list[JoinRequest]:
        """Return the waiting join requests, after dropping those that have expired or can no longer be
        granted."""
        self._drop(run_state, now)
        return [pending.join_request for pending in self._pending.values()]

    def next(self, run_state: RunState, now: float) -> Admit | None:
        """Return the next admission that the policy grants without the owner; None if there is none, or if
        the rate does not allow one yet."""
        rate, burst = self.policy.admissions_per_minute / 60, self.policy.admission_burst
        self._drop(run_state, now)
        for pending in self._pending.values():
            if not (pending.granted and self._bucket.holds(1, now, rate=rate)):
                continue
            admit = self._admits(pending.join_request, run_state)
            pending.granted = admit is not None  # the invitation may be used up, or revoked
            if admit:
                self._bucket.take(1, now, rate=rate, burst=burst)
                return admit
        return None

    @property
    def _owner_is_asked(self) -> bool:
        return self.policy.admission is Admission.APPROVE

    def _admits(self, join_request: JoinRequest, run_state: RunState) -> Admit | None:
        """Return the admission that the policy grants a join request without the owner; None if there is
        none."""
        if invited(self._run_id, join_request, run_state):
            return Admit(join_request.origin, self.policy.quota, join_request.invitation)
        if self.policy.admission is not Admission.ANYONE:
            return None
        enough = work(self._run_id, join_request.origin, join_request.nonce) >= self.policy.work_bits
        return Admit(join_request.origin, 0, 0) if enough else None

    def _drop(self, run_state: RunState, now: float) -> None:
        self._pending = {
            origin: pending
            for origin, pending in self._pending.items()
            if now - pending.at < PENDING_TIME
            and run_state.member(origin) is None
            and (pending.granted or self._owner_is_asked)
        }
