"""The control feed: the organiser's decisions as one signed sequence, and who may go on with it (O3, O4).

Every decision extends a hash chain and is signed on its own, so that two signatures at one position prove
that the organiser has signed two sequences. Deputies, named in the manifest, may pass the feed on to another
key. Nothing here knows what a decision means, or links, or time.

Theory of operation. Three things come in, in any order: decisions, successions, forks. What the sequence is
follows from what has come, not from when:

    the succession of the highest term counts, unless there are two of that term
    what it keeps is told by one chain hash, whatever else was signed; after that, only its key decides
    a fork freezes the sequence before the position at which two were signed, for as long as its term lasts
    decisions are a prefix of one chain; one that does not follow is not taken

A node that lacks something of what the succession keeps is *behind*. It takes whatever was signed, one
history in place of another where they differ, until one of them leads to that chain hash.

Whoever folds the decisions remembers how many it has folded and the chain hash after them: if `chains` has
another one there, or ends before, it folds anew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from sfprotocol.decisions import MAX_DECISION
from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.messages import Authority, ControlFork, Entry, Succession, Vote
from sfprotocol.signing import Sign, signed_by

_CHAIN = b"sfnode-control"
_HEAD = b"sfnode-decision"
_SUCCESSION = b"sfnode-succession"

MAX_DEPUTIES = 64
"""Deputies of a run: as many signatures are checked for a succession."""

MAX_TERMS = 64
"""Terms of which successions are kept, the highest: only a majority of the deputies can make more of them."""

MAX_CONTROL = 1 << 28
"""Bytes of a control feed, each decision counted with ENTRY_COST more: 1,000 epochs in which 10,000 feeds
move. Whatever the holder of the key signs, it costs others no more memory than a few times that."""

ENTRY_COST = 256
"""Bytes that a node keeps for a decision besides the record: signature, chain hash, places in lists."""


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


def valid_votes(authority: Authority, succession: Succession) -> list[Vote]:
    """Return the votes of deputies, one of each, whose signature holds."""
    message = succession_message(authority.run_id, succession)
    deputies, votes = authority.deputies, dict(succession.votes)
    return [
        Vote(deputy, votes[deputy])
        for deputy in sorted(votes)
        if deputy < len(deputies) and signed_by(deputies[deputy], message, votes[deputy])
    ]


class ControlFeed:
    """The decisions of one run, as far as this node has them."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.entries: list[Entry] = []
        self.chains = [genesis(authority.run_id)]
        """Chain hashes, after 0, 1, ... decisions."""
        self.forks: dict[int, ControlFork] = {}
        """The fork at the lowest position, by term, of those with one key."""
        self.successions: dict[bytes, Succession] = {}
        """Successions by what was signed: of each term one, or the lowest two, which void each other."""
        self.succession: Succession | None = None
        """The succession that counts: that of the highest term that has only one."""
        self._sizes = [0]
        """Bytes that are kept for the first 0, 1, ... decisions (see MAX_CONTROL)."""

    @property
    def stop(self) -> int:
        """Number of decisions here."""
        return len(self.entries)

    @property
    def chain(self) -> bytes:
        """The chain hash after them."""
        return self.chains[-1]

    @property
    def term(self) -> int:
        """The term whose key signs what comes next."""
        return self.succession.term if self.succession else 0

    @property
    def frozen(self) -> bool:
        """Whether the present term's key has signed two sequences: a succession has to go on."""
        return self.term in self.forks

    @property
    def behind(self) -> bool:
        """Whether something is lacking of what the succession keeps: the sequence is not known here."""
        return self.succession is not None and self.stop < self.succession.kept

    @property
    def settled(self) -> bool:
        """Whether the sequence here goes on: what it does not allow is not to be held."""
        return not self.frozen and not self.behind

    @property
    def key(self) -> bytes | None:
        """The key that signs what comes next; None where nobody can tell."""
        keys = self._keys(self.term)
        return next(iter(keys)) if len(keys) == 1 else None

    @property
    def next_term(self) -> int:
        """The first term for which no succession is known, be it void or not."""
        return 1 + max((succession.term for succession in self.successions.values()), default=0)

    def sign(self, record: bytes, sign: Sign) -> Entry:
        """Return the next decision of the present term, signed; the caller adds it.

        Raises LocalProtocolError where a decision cannot follow: it would fork the feed.
        """
        entry = Entry(self.term, record, b"")
        if self.frozen or self.behind or not self._allowed(self.stop, entry):
            raise LocalProtocolError("a decision that cannot follow those that are here")
        chain = extend(self.chain, entry.term, record)
        message = decision_message(self.authority.run_id, entry.term, self.stop + 1, chain)
        return entry._replace(signature=sign(message))

    # -- what comes in -----------------------------------------------------------------------------

    def add(self, first: int, entries: Iterable[Entry]) -> int | ControlFork:
        """Take in decisions from position `first` on; return how many at the end are new, or a fork.

        The first that does not follow, is not signed or may not be taken as things stand ends it: a Want asks
        again. Decisions that were here may be gone afterwards, if this node is behind.
        """
        new = 0
        for position, entry in enumerate(entries, first):
            if position > self.stop or not self._allowed(position, entry):
                break
            chain = extend(self.chains[position], entry.term, entry.record)
            if position < self.stop and chain == self.chains[position + 1]:
                continue
            if not self._signed(entry.term, position + 1, chain, entry.signature):
                break  # by nobody, or in a history that differs from ours before this position
            if position < self.stop and not self.behind:
                return (
                    new if self.entries[position].term != entry.term else self._fork(position, entry, chain)
                )
            if self._betrays(position + 1, chain):
                break
            self._truncate(position)
            self._append(entry, chain)
            new += 1
        return new

    def freeze(self, fork: ControlFork) -> bool:
        """Take in a proof that a term's key has signed two sequences; return whether it changes anything.

        Raises RemoteProtocolError (SPEC O4) if it proves nothing.
        """
        if fork.chains[0] == fork.chains[1]:
            raise RemoteProtocolError("O4", "a fork of equal sequences")
        if not self._lasting(fork.term):
            return False  # of a term that is void, or of which we have yet to hear
        pairs = zip(fork.chains, fork.signatures, strict=True)
        if not all(self._signed(fork.term, fork.stop, *pair) for pair in pairs):
            raise RemoteProtocolError("O4", "a fork that the organiser has not signed")
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
        name = succession_message(self.authority.run_id, succession)
        if name in self.successions:
            return False
        empty = succession.kept == 0 and succession.chain != self.chains[0]
        votes = valid_votes(self.authority, succession)
        if succession.term < 1 or empty or len(votes) < self.authority.votes:
            raise RemoteProtocolError("O4", "a succession without the votes that it needs")
        kept = self._lowest_two({**self.successions, name: succession})
        if name not in kept:
            return False
        self.successions = kept
        self._settle()
        return True

    # -- the one rule for what stays ---------------------------------------------------------------

    @staticmethod
    def _lowest_two(successions: dict[bytes, Succession]) -> dict[bytes, Succession]:
        """Return the lowest two of each of the highest terms: which they are depends on no order."""
        by_term: dict[int, list[bytes]] = {}
        for name in sorted(successions):
            by_term.setdefault(successions[name].term, []).append(name)
        return {
            name: successions[name] for term in sorted(by_term)[-MAX_TERMS:] for name in by_term[term][:2]
        }

    def _settle(self) -> None:
        """Find the succession that counts; drop what does not belong to the sequence any more."""
        alone = (succession for succession in self.successions.values() if self._lasting(succession.term))
        self.succession = max(alone, key=lambda succession: succession.term, default=None)
        self.forks = {term: fork for term, fork in self.forks.items() if self._lasting(term)}
        kept = self.succession.kept if self.succession else 0
        if kept <= self.stop and self._betrays(kept, self.chains[kept]):
            self._truncate(kept - 1)
        allowed = (self._allowed(position, entry) for position, entry in enumerate(self.entries))
        self._truncate(next((position for position, may in enumerate(allowed) if not may), self.stop))

    def _betrays(self, stop: int, chain: bytes) -> bool:
        """Whether `stop` decisions with this chain hash are as many as the succession keeps, but others."""
        last = self.succession
        return last is not None and last.kept == stop and last.chain != chain

    def _allowed(self, position: int, entry: Entry) -> bool:
        """Whether a decision of this term, and of this size, may stand at this position."""
        if len(entry.record) > MAX_DECISION or self._sizes[position] + _cost(entry) > MAX_CONTROL:
            return False
        if self.succession and position < self.succession.kept:
            return True  # its chain hash tells
        fork = self.forks.get(entry.term)
        return entry.term == self.term and (fork is None or position < fork.stop - 1)

    def _append(self, entry: Entry, chain: bytes) -> None:
        self.entries.append(entry)
        self.chains.append(chain)
        self._sizes.append(self._sizes[-1] + _cost(entry))

    def _truncate(self, stop: int) -> None:
        del self.entries[stop:]
        del self.chains[stop + 1 :]
        del self._sizes[stop + 1 :]

    def _fork(self, position: int, entry: Entry, chain: bytes) -> ControlFork:
        """Return the proof that somebody has signed both our decision at this position and another one."""
        chains = self.chains[position + 1], chain
        return ControlFork(
            entry.term, position + 1, chains, (self.entries[position].signature, entry.signature)
        )

    # -- signatures --------------------------------------------------------------------------------

    def _keys(self, term: int) -> set[bytes]:
        """Return the keys that sign in a term: two, if the deputies have named two."""
        if term == 0:
            return {self.authority.organiser}
        return {succession.key for succession in self.successions.values() if succession.term == term}

    def _lasting(self, term: int) -> bool:
        """Whether there is one succession of this term, or it is the first."""
        same = sum(succession.term == term for succession in self.successions.values())
        return term == 0 or same == 1

    def _signed(self, term: int, stop: int, chain: bytes, signature: bytes) -> bool:
        message = decision_message(self.authority.run_id, term, stop, chain)
        return any(signed_by(key, message, signature) for key in sorted(self._keys(term)))


def _cost(entry: Entry) -> int:
    return len(entry.record) + ENTRY_COST
