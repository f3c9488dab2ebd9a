"""The control feed: the organiser's decisions as one signed sequence, and who may go on with it (O3, O4).

Every decision extends a hash chain and is signed on its own, so that two signatures at one position prove
that the organiser has signed two sequences. Deputies, named in the manifest, may pass the feed on to another
key. Nothing here knows what a decision means, or links, or time.

Theory of operation. Three things come in, in any order: decisions, successions, forks. What the sequence is
follows from what has come, not from when:

    the succession of the highest term counts; decisions of lower terms behind what it keeps do not
    a fork freezes the sequence before the position at which two were signed, for as long as its term lasts
    decisions are a prefix of one chain; one that does not follow is not taken
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from sfprotocol.errors import RemoteProtocolError
from sfprotocol.messages import Authority, ControlFork, Entry, Succession, Vote
from sfprotocol.signing import Sign, signed_by

_CHAIN = b"sfnode-control"
_HEAD = b"sfnode-decision"
_SUCCESSION = b"sfnode-succession"

NOT_SIGNED = "a decision that the organiser has not signed"

MAX_DEPUTIES = 64
MAX_SUCCESSIONS = 64
"""Successions that are kept: only a majority of the deputies together can make another one."""


def genesis(run_id: bytes) -> bytes:
    """Return the chain hash of the empty control feed."""
    return hashlib.blake2b(run_id, digest_size=32, person=_CHAIN).digest()


def extend(chain: bytes, term: int, record: bytes) -> bytes:
    """Return the chain hash after one more decision."""
    return hashlib.blake2b(chain + term.to_bytes(4, "big") + record, digest_size=32, person=_CHAIN).digest()


def decision_message(run_id: bytes, term: int, stop: int, chain: bytes) -> bytes:
    """Return what the key of a term signs: the chain hash after `stop` decisions."""
    return b"".join((_HEAD, run_id, term.to_bytes(4, "big"), stop.to_bytes(8, "big"), chain))


def succession_message(run_id: bytes, succession: Succession) -> bytes:
    """Return what deputies sign."""
    numbers = succession.term.to_bytes(4, "big") + succession.kept.to_bytes(8, "big")
    return b"".join((_SUCCESSION, run_id, numbers, succession.chain, succession.key))


class ControlFeed:
    """The decisions of one run, as far as this node has them."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.entries: list[Entry] = []
        self.chains = [genesis(authority.run_id)]
        """Chain hashes, after 0, 1, ... decisions."""
        self.forks: dict[int, ControlFork] = {}
        """Of each term the one at the lowest position."""
        self.successions: dict[bytes, Succession] = {}
        """All that hold on their own, by what was signed; the votes of all that were seen are joined."""

    @property
    def stop(self) -> int:
        """Number of decisions here."""
        return len(self.entries)

    @property
    def chain(self) -> bytes:
        """The chain hash after them."""
        return self.chains[-1]

    @property
    def succession(self) -> Succession | None:
        """The succession that counts: the only one of its term, of the highest such term."""
        counting: dict[int, list[Succession]] = {}
        for succession in self.successions.values():
            if len(self._votes(succession)) >= self.authority.votes:
                counting.setdefault(succession.term, []).append(succession)
        alone = [candidates[0] for candidates in counting.values() if len(candidates) == 1]
        return max(alone, key=lambda succession: succession.term, default=None)

    @property
    def term(self) -> int:
        """The term whose key signs what comes next."""
        succession = self.succession
        return succession.term if succession else 0

    @property
    def frozen(self) -> bool:
        """Whether the present term's key has signed two sequences: a succession has to go on."""
        return self.term in self.forks

    def key(self, term: int) -> bytes | None:
        """Return the key that signs in a term; None for a term that nobody can tell a key of."""
        if term == 0:
            return self.authority.organiser
        keys = {succession.key for succession in self.successions.values() if succession.term == term}
        return keys.pop() if len(keys) == 1 else None

    def sign(self, record: bytes, sign: Sign) -> Entry:
        """Return the next decision of the present term, signed; the caller adds it."""
        term = self.term
        chain = extend(self.chain, term, record)
        return Entry(term, record, sign(decision_message(self.authority.run_id, term, self.stop + 1, chain)))

    # -- what comes in -----------------------------------------------------------------------------

    def add(self, first: int, entries: Iterable[Entry]) -> int | ControlFork:
        """Take in decisions from position `first` on; return how many were new, or the fork that they show.

        Raises RemoteProtocolError (SPEC O3) if nothing was taken because a signature does not hold: it is
        forged, or of another sequence than ours. What does not follow, or may not be taken as things stand,
        is left out: a Want asks for it again.
        """
        new = 0
        for position, entry in enumerate(entries, first):
            if position > self.stop or not self._allowed(position, entry.term):
                break
            chain = extend(self.chains[position], entry.term, entry.record)
            if position < self.stop and chain == self.chains[position + 1]:
                continue
            if not self._signed(entry.term, position + 1, chain, entry.signature):
                if new:
                    break
                raise RemoteProtocolError("O3", NOT_SIGNED)
            if position < self.stop:
                return self._conflict(position, entry, chain)
            self.entries.append(entry)
            self.chains.append(chain)
            new += 1
            if self._betrays(position + 1):
                self._truncate(0)  # where it left the sequence that the deputies kept nobody has said
                return 0
        return new

    def freeze(self, fork: ControlFork) -> bool:
        """Take in a proof that a term's key has signed two sequences; return whether it changes anything.

        Raises RemoteProtocolError (SPEC O4) if it proves nothing.
        """
        if fork.chains[0] == fork.chains[1] or fork.stop < 1:
            raise RemoteProtocolError("O4", "a fork of equal sequences")
        for chain, signature in zip(fork.chains, fork.signatures, strict=True):
            if not self._signed(fork.term, fork.stop, chain, signature):
                raise RemoteProtocolError("O3", NOT_SIGNED)
        known = self.forks.get(fork.term)
        if known and known.stop <= fork.stop:
            return False
        self.forks[fork.term] = fork
        self._settle()
        return True

    def succeed(self, succession: Succession) -> bool:
        """Take in a succession; return whether it changes anything.

        Raises RemoteProtocolError (SPEC O4) if too few deputies have signed it.
        """
        if succession.term < 1 or len(self._valid_votes(succession)) < self.authority.votes:
            raise RemoteProtocolError("O4", "a succession without the votes that it needs")
        name = succession_message(self.authority.run_id, succession)
        known = self.successions.get(name)
        if known is None and len(self.successions) >= MAX_SUCCESSIONS:
            return False
        votes = dict(known.votes) if known else {}
        if known and all(vote.deputy in votes for vote in succession.votes):
            return False
        joined = {**dict(self._valid_votes(succession)), **votes}
        self.successions[name] = Succession(
            succession.term,
            succession.kept,
            succession.chain,
            succession.key,
            tuple(Vote(*item) for item in sorted(joined.items())),
        )
        self._settle()
        return True

    # -- the one rule for what stays ---------------------------------------------------------------

    def _settle(self) -> None:
        """Drop what does not belong to the sequence any more."""
        self._truncate(min(self.stop, self._end()))

    def _end(self) -> int:
        """Return the position up to which what is here belongs to the sequence."""
        end = self.stop
        succession = self.succession
        if succession and succession.kept <= end and self._betrays(succession.kept):
            return 0
        for position, entry in enumerate(self.entries):
            if not self._allowed(position, entry.term):
                return position
        return end

    def _betrays(self, stop: int) -> bool:
        """Whether the first `stop` decisions are not those that the present succession keeps."""
        succession = self.succession
        return succession is not None and succession.kept == stop and self.chains[stop] != succession.chain

    def _allowed(self, position: int, term: int) -> bool:
        """Whether a decision of this term may stand at this position."""
        succession = self.succession
        if succession and (position >= succession.kept) != (term == succession.term):
            return False
        if not succession and term != 0:
            return False
        before = self.entries[position - 1].term if 0 < position <= self.stop else 0
        fork = self.forks.get(term)
        kept = succession is not None and position < succession.kept
        return term >= before and (kept or fork is None or position < fork.stop - 1)

    def _truncate(self, stop: int) -> None:
        del self.entries[stop:]
        del self.chains[stop + 1 :]

    def _conflict(self, position: int, entry: Entry, chain: bytes) -> int | ControlFork:
        """Return the proof that somebody has signed both our decision at this position and another one."""
        ours = self.entries[position]
        if ours.term != entry.term:
            return 0
        chains, signatures = (self.chains[position + 1], chain), (ours.signature, entry.signature)
        return ControlFork(entry.term, position + 1, chains, signatures)

    # -- signatures --------------------------------------------------------------------------------

    def _signed(self, term: int, stop: int, chain: bytes, signature: bytes) -> bool:
        key = self.key(term)
        message = decision_message(self.authority.run_id, term, stop, chain)
        return key is not None and signed_by(key, message, signature)

    def _valid_votes(self, succession: Succession) -> list[Vote]:
        message = succession_message(self.authority.run_id, succession)
        deputies = self.authority.deputies
        votes = dict(succession.votes)
        return [
            Vote(deputy, votes[deputy])
            for deputy in sorted(votes)
            if deputy < len(deputies) and signed_by(deputies[deputy], message, votes[deputy])
        ]

    def _votes(self, succession: Succession) -> list[Vote]:
        """Return the votes of deputies who have signed no other succession of the same term."""
        others = [o for o in self.successions.values() if o.term == succession.term and o != succession]
        twice = {vote.deputy for other in others for vote in other.votes}
        return [vote for vote in succession.votes if vote.deputy not in twice]
