"""The control feed: the organiser's decisions as one signed sequence, and the keys that may extend it (O3,
O4).

Every decision extends a hash chain, and its signature is over the new chain hash. So two different chain
hashes that one key has signed for the same position prove that the holder of the key has signed two
sequences. Deputies, who are named in the manifest, may pass the feed on to another key. This module does not
know what a decision means, and knows no links and no time.

Theory of operation. Decisions, successions and forks arrive in any order. The sequence is a function of the
set that has arrived:

    succession   the one with the highest term counts; two with the same term void each other. It names one
                 chain hash: the decisions up to there stay, and only the succession's key signs later ones
    fork         ends the sequence before the position at which one key has signed two decisions, until the
                 term of that key is over
    election     begins a term within the sequence. More than half of the stand-ins have signed it, and with
                 it the chain hash of all decisions before it. If two sequences differ, the one with the later
                 term at the first difference counts
    decision     is added only if it follows the stored decisions, which always form one chain

A node *misses decisions* if it lacks some of the decisions that the succession keeps. It then accepts any
signed decisions, even in place of different stored ones, until they lead to the succession's chain hash.

Code that computes a state from the decisions remembers how many it has applied, and the chain hash after
these. If `chains` has another hash at that position, or ends before it, the code must apply all decisions
again from the first one on.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from sfprotocol import decisions
from sfprotocol.decisions import MAX_DECISION, Elected, StandIns
from sfprotocol.errors import LocalProtocolError, RemoteProtocolError
from sfprotocol.messages import Authority, ControlFork, DoubleVote, Entry, Statement, Succession, Vote
from sfprotocol.signing import Sign, signed_by

_CHAIN = b"sfnode-control"
_HEAD = b"sfnode-decision"
_SUCCESSION = b"sfnode-succession"
_ELECTION = b"sfnode-election"
_STATEMENT = b"sfnode-statement"

_TURNS = tuple(decisions.encode(one)[1:2] for one in (StandIns(()), Elected(bytes(32), ())))
"""The kinds of the two decisions that change who signs (StandIns and Elected), as they stand in the second
byte of a record. Records of other kinds are not decoded here."""

MAX_DEPUTIES = 64
"""Maximum number of deputies of a run. Bounds the number of signatures that are checked for a succession."""

MAX_TERMS = 64
"""Maximum number of terms whose successions are stored; those of the highest terms are kept. Nobody can fill
this store without the signatures of more than half of the deputies."""

MAX_CONTROL = 1 << 28
"""Maximum size of a control feed, in bytes, including ENTRY_COST for each decision. The size is enough for
1,000 epochs in which 10,000 feeds make updates. It also bounds how much memory the holder of the organiser's
key can use up at other nodes: a few times MAX_CONTROL."""

ENTRY_COST = 256
"""Bytes of memory that a decision takes besides its record, for its signature, its chain hash and list
entries."""


def genesis(run_id: bytes) -> bytes:
    """Return the chain hash of the empty control feed."""
    return hashlib.blake2b(run_id, digest_size=32, person=_CHAIN).digest()


def extend(chain: bytes, term: int, record: bytes) -> bytes:
    """Return the chain hash after a decision; `chain` is the chain hash before it."""
    return hashlib.blake2b(chain + term.to_bytes(4, "big") + record, digest_size=32, person=_CHAIN).digest()


def decision_message(run_id: bytes, term: int, stop: int, chain: bytes) -> bytes:
    """Return the message that the key of `term` signs for the last of `stop` decisions; `chain` is the chain
    hash after that decision."""
    return b"".join((_HEAD, run_id, term.to_bytes(4, "big"), stop.to_bytes(8, "big"), chain))


def succession_message(run_id: bytes, succession: Succession) -> bytes:
    """Return the message that deputies sign for a succession."""
    numbers = succession.term.to_bytes(4, "big") + succession.kept.to_bytes(8, "big")
    return b"".join((_SUCCESSION, run_id, numbers, succession.chain, succession.key))


def election_message(run_id: bytes, term: int, kept: int, chain: bytes, key: bytes) -> bytes:
    """Return the message that stand-ins sign to elect `key` for `term`. The term begins after `kept`
    decisions, and `chain` is the chain hash after them."""
    return b"".join((_ELECTION, run_id, term.to_bytes(4, "big"), kept.to_bytes(8, "big"), chain, key))


def statement_message(run_id: bytes, said: Statement, entries: bytes = b"") -> bytes:
    """Return the message that a stand-in signs for a statement. The message contains the hash of the
    statement's entries, so that nobody can leave entries out when forwarding the statement. `entries` is this
    hash; it must be given if the statement has lost its entries."""
    numbers = (
        (said.number, 8), (said.term, 4), (said.voted, 4), (said.decided, 8), (said.stop, 8), (said.last, 4),
        (said.heard, 8), (said.silent, 1),
    )  # fmt: skip
    fixed = b"".join(int(number).to_bytes(width, "big") for number, width in numbers)
    candidate, ballot = said.candidate or bytes(32), said.ballot or bytes(64)
    told = entries or hash_of(said.entries)
    return b"".join((_STATEMENT, run_id, said.key, fixed, candidate, ballot, said.chain, told))


def hash_of(entries: Iterable[Entry]) -> bytes:
    """Return the hash of a statement's entries, as contained in the signed message; 32 bytes."""
    heads = ((one, one.term.to_bytes(4, "big") + len(one.record).to_bytes(4, "big")) for one in entries)
    told = b"".join(part for one, head in heads for part in (head, one.record, one.signature))
    return hashlib.blake2b(told, digest_size=32).digest()


def valid_votes(authority: Authority, succession: Succession) -> list[Vote]:
    """Return the votes with a valid signature, at most one for each deputy, in the order of deputies."""
    message = succession_message(authority.run_id, succession)
    deputies, votes = authority.deputies, dict(succession.votes)
    return [
        Vote(deputy, votes[deputy])
        for deputy in sorted(votes)
        if deputy < len(deputies) and signed_by(deputies[deputy], message, votes[deputy])
    ]


class _Turn(NamedTuple):
    """A decision about who signs, with its position in the sequence."""

    position: int
    term: int
    keys: tuple[bytes, ...]
    """The keys of the stand-ins from this position on, or the elected key."""
    members: tuple[int, ...] = ()
    """Member numbers of the stand-ins; empty for an election."""


_POSITION, _TERM = attrgetter("position"), attrgetter("term")


class ControlFeed:
    """The decisions of one run that this node has, and the successions and proofs that decide who signs
    them."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.entries: list[Entry] = []
        self.chains = [genesis(authority.run_id)]
        """Chain hashes after 0, 1, ... decisions."""
        self.forks: dict[int, ControlFork] = {}
        """The proof of each term's fork, keyed by term. Of several forks of a term, the one at the lowest
        position is stored."""
        self.liars: dict[bytes, DoubleVote] = {}
        """Proofs of stand-ins that have elected two keys for one term, keyed by the stand-in's key.
        Statements of these stand-ins are ignored."""
        self.successions: dict[bytes, Succession] = {}
        """Successions, keyed by their signed message. For each term, one is stored, or two that void each
        other. If there are more than two for a term, the two with the lowest signed messages are stored."""
        self.succession: Succession | None = None
        """The succession that counts: the one of the highest term that has exactly one succession; None
        without such a term."""
        self._sizes = [0]
        """Total size of the first 0, 1, ... decisions, in bytes (see MAX_CONTROL)."""
        self._named: list[_Turn] = []
        """The StandIns decisions among `entries`, in order."""
        self._elected: list[_Turn] = []
        """The Elected decisions among `entries`, in order."""

    @property
    def stop(self) -> int:
        """Number of stored decisions."""
        return len(self.entries)

    @property
    def chain(self) -> bytes:
        """The chain hash after all stored decisions."""
        return self.chains[-1]

    @property
    def term(self) -> int:
        """The term whose key signs the next decision."""
        return self._term_at(self.stop)

    @property
    def stand_ins(self) -> tuple[bytes, ...]:
        """The keys of the stand-ins; empty if there are none. A majority of them elects an organiser and
        confirms its decisions."""
        return self._stand_ins_at(self.stop, self.term)

    @property
    def forked(self) -> bool:
        """Whether the present term's key has signed two sequences."""
        return self.term in self.forks

    @property
    def frozen(self) -> bool:
        """Whether no decision can be made before the next succession: the present term's key has signed two
        sequences, or at least half of the stand-ins have each elected two keys for one term."""
        honest = sum(key not in self.liars for key in self.stand_ins)
        return self.forked or (bool(self.stand_ins) and 2 * honest <= len(self.stand_ins))

    @property
    def misses_decisions(self) -> bool:
        """Whether decisions that the succession keeps are missing here."""
        return self.succession is not None and self.stop < self.succession.kept

    @property
    def settled(self) -> bool:
        """Whether updates that the stored decisions do not allow may be dropped: the sequence is not frozen,
        and misses no decisions."""
        return not self.frozen and not self.misses_decisions

    @property
    def key(self) -> bytes | None:
        """The key that signs the next decision; None if it is unknown."""
        return self._key_of(self.term)

    @property
    def standing(self) -> dict[bytes, int]:
        """The member number of each stand-in, keyed by its key as a stand-in."""
        named = _last_before(self._named, self.stop)
        return dict(zip(named.keys, named.members, strict=True)) if named and self.stand_ins else {}

    @property
    def begun(self) -> int:
        """Number of decisions before the present term began."""
        last = self._elected[-1] if self._elected else None
        if last and last.term == self.term:
            return last.position
        return self.succession.kept if self.succession else 0

    @property
    def next_term(self) -> int:
        """The term that a new succession would begin: the first one after the terms of all known successions,
        void ones included."""
        terms = self.authority.terms
        return terms + max((succession.term for succession in self.successions.values()), default=0)

    def turns(self) -> list[tuple[bytes, int, Entry]]:
        """Return the decisions with which `after` can check, elsewhere, which key signs next: the elections
        since the last succession, and for each election the StandIns that named its voters. Each item is
        (chain hash before the decision, position of the decision, decision)."""
        term, places = self.term, list[int]()
        while term % self.authority.terms:
            elected = next(turn for turn in self._elected if turn.term == term)
            named = _last_before(self._named, elected.position)
            assert named is not None  # the stand-ins of this election
            term, places = named.term, [named.position, elected.position, *places]
        return [(self.chains[place], place, self.entries[place]) for place in places]

    def after(self, turns: Iterable[tuple[bytes, int, Entry]]) -> tuple[int, bytes | None]:
        """Return the present term and its key according to the `turns` of another node and the successions
        known here. The key is None if one of the `turns` is not valid at its position."""
        told, last = ControlFeed(self.authority), -1
        told.successions, told.succession = self.successions, self.succession
        for chain, place, entry in turns:
            term = told._term_at(place)
            begins = told._begins(term, entry)
            if (
                place <= last
                or not (entry.term == term or begins)
                or not told._is_signed(place, entry, chain)
            ):
                return term, None
            told._take_turn(place, entry)
            last = place
        term = told._term_at(last + 1)
        return term, told._key_of(term)

    def copy(self) -> ControlFeed:
        """Return an independent copy."""
        other = copy(self)
        other.entries, other.chains, other.forks = [*self.entries], [*self.chains], {**self.forks}
        other.liars = {**self.liars}
        other._sizes, other._named, other._elected = [*self._sizes], [*self._named], [*self._elected]
        return other

    def sign(self, record: bytes, sign: Sign) -> Entry:
        """Return the next decision of the present term, signed; the caller adds it.

        Raises LocalProtocolError if the decision cannot follow the stored decisions and so would fork the
        feed.
        """
        return self._sign(Entry(self.term, record, b""), sign)

    def elect(self, term: int, elected: Elected, sign: Sign) -> Entry:
        """Return the decision `elected`, which begins `term`, signed by the elected key. Raises
        LocalProtocolError in the same cases as `sign`."""
        return self._sign(Entry(term, decisions.encode(elected), b""), sign)

    def _sign(self, entry: Entry, sign: Sign) -> Entry:
        if self.frozen or self.misses_decisions or not self._allowed(self.stop, entry):
            raise LocalProtocolError("a decision that cannot follow the stored decisions")
        chain = extend(self.chain, entry.term, entry.record)
        message = decision_message(self.authority.run_id, entry.term, self.stop + 1, chain)
        return entry._replace(signature=sign(message))

    # -- what comes in -----------------------------------------------------------------------------

    def add(self, first: int, entries: Iterable[Entry]) -> int | ControlFork:
        """Add decisions from position `first` on. Return the number of new decisions, with which the sequence
        now ends. If the decisions show a fork, return its proof instead.

        Stops at the first decision that does not follow the stored ones, is not validly signed or is not
        allowed yet. The caller requests this decision and the later ones again. Stored decisions are replaced
        only if this node misses decisions or has missed an election.
        """
        if self.forked and (trial := self._beyond_the_fork(first, entries := tuple(entries))):
            new = len(set(trial.chains) - set(self.chains))
            self.__dict__.update(trial.__dict__)
            return new
        new = 0
        for position, entry in enumerate(entries, first):
            if position > self.stop or not self._allowed(position, entry):
                break
            chain = extend(self.chains[position], entry.term, entry.record)
            if position < self.stop and chain == self.chains[position + 1]:
                continue
            if not self._is_signed(position, entry, self.chains[position]):
                break  # not signed, or signed after a history that differs from ours
            if (
                position < self.stop
                and not self.misses_decisions
                and not self._is_later(position, entry, chain)
            ):
                if not self._is_fork(position, entry):
                    return new
                chains = self.chains[position + 1], chain
                signatures = self.entries[position].signature, entry.signature
                return ControlFork(entry.term, position + 1, chains, signatures)
            if self._betrays(position + 1, chain):
                break
            self._truncate(position)
            self._append(entry, chain)
            new += 1
        return new

    def freeze(self, fork: ControlFork) -> bool:
        """Store a proof that a term's key has signed two sequences; return whether it changes anything.

        Raises RemoteProtocolError (SPEC O4) if the proof is not valid.
        """
        if fork.chains[0] == fork.chains[1]:
            raise RemoteProtocolError("O4", "a fork of equal sequences")
        if not self._lasting(fork.term) or self._is_overruled(fork.term):
            return False  # its term is void, over or still unknown
        pairs = zip(fork.chains, fork.signatures, strict=True)
        if not all(self._signed(fork.term, fork.stop, *pair) for pair in pairs):
            raise RemoteProtocolError("O4", "a fork without valid signatures of its term's key")
        known = self.forks.get(fork.term)
        if known and known.stop <= fork.stop:
            return False
        self.forks[fork.term] = fork
        self._settle()
        return True

    def convict(self, proof: DoubleVote) -> bool:
        """Store a proof that a stand-in has elected two keys for one term; return whether there was no such
        proof before.

        Raises RemoteProtocolError (SPEC O24) if the proof is not valid.
        """
        one, other = proof.statements
        if not _elect_two(one, other) or any(said.entries for said in proof.statements):
            raise RemoteProtocolError("O24", "two statements that do not elect two keys for one term")
        if one.key in self.liars or not any(one.key in turn.keys for turn in self._named):
            return False
        for said, entries in zip(proof.statements, proof.hashes, strict=True):
            message = statement_message(self.authority.run_id, said, entries)
            if not signed_by(one.key, message, said.signature):
                raise RemoteProtocolError("O24", "a statement without a valid signature of its key")
        self.liars[one.key] = proof
        return True

    def proofs(self) -> list[ControlFork | DoubleVote]:
        """Return all stored proofs of forks and double votes."""
        return [*self.forks.values(), *self.liars.values()]

    def succeed(self, succession: Succession) -> bool:
        """Store a succession; return whether it changes anything.

        Raises RemoteProtocolError (SPEC O4) if too few deputies have signed it.
        """
        name = succession_message(self.authority.run_id, succession)
        if name in self.successions:
            return False
        empty = succession.kept == 0 and succession.chain != self.chains[0]
        votes = valid_votes(self.authority, succession)
        if (
            succession.term < 1
            or succession.term % self.authority.terms
            or empty
            or len(votes) < self.authority.votes
        ):
            raise RemoteProtocolError("O4", "a succession with too few valid votes")
        kept = self._lowest_two({**self.successions, name: succession})
        if name not in kept:
            return False
        self.successions = kept
        self._settle()
        return True

    # -- which decisions stay ----------------------------------------------------------------------

    @staticmethod
    def _lowest_two(successions: dict[bytes, Succession]) -> dict[bytes, Succession]:
        """Return, for each of the MAX_TERMS highest terms, the two successions with the lowest messages. The
        result does not depend on the order of arrival."""
        by_term: dict[int, list[bytes]] = {}
        for name in sorted(successions):
            by_term.setdefault(successions[name].term, []).append(name)
        return {
            name: successions[name] for term in sorted(by_term)[-MAX_TERMS:] for name in by_term[term][:2]
        }

    def _settle(self) -> None:
        """Find the succession that counts. Drop decisions that do not belong to the sequence any more."""
        alone = (succession for succession in self.successions.values() if self._lasting(succession.term))
        self.succession = max(alone, key=lambda succession: succession.term, default=None)
        self.forks = {term: fork for term, fork in self.forks.items() if self._lasting(term)}
        kept = self.succession.kept if self.succession else 0
        if kept <= self.stop and self._betrays(kept, self.chains[kept]):
            self._truncate(kept - 1)
        allowed = (self._allowed(position, entry) for position, entry in enumerate(self.entries))
        self._truncate(next((position for position, may in enumerate(allowed) if not may), self.stop))

    def _betrays(self, stop: int, chain: bytes) -> bool:
        """Return whether the succession keeps `stop` decisions, but with another chain hash than `chain`."""
        last = self.succession
        return last is not None and last.kept == stop and last.chain != chain

    def _term_at(self, position: int) -> int:
        """Return the term whose key signs at a position, unless an election begins another term there."""
        begun = self.succession.term if self.succession else 0
        last = _last_before(self._elected, position)
        return last.term if last and self._follows(begun, last.term) else begun

    def _follows(self, begun: int, term: int) -> bool:
        """Return whether `term` is later than `begun` and belongs to the same succession."""
        return begun < term < begun - begun % self.authority.terms + self.authority.terms

    def _begins(self, term: int, entry: Entry) -> bool:
        """Return whether a decision is an election that may begin its term after `term`."""
        return self._follows(term, entry.term) and isinstance(turn_of(entry.record), Elected)

    def _stand_ins_at(self, position: int, term: int) -> tuple[bytes, ...]:
        """Return the keys of the stand-ins that may elect at a position in `term`; empty if a succession has
        come since they were named."""
        last = _last_before(self._named, position)
        alike = last is not None and (last.term == term or self._follows(last.term, term))
        return last.keys if last and alike and self.authority.terms > 1 else ()

    def _allowed(self, position: int, entry: Entry) -> bool:
        """Return whether a decision of this term and size is allowed at this position."""
        if len(entry.record) > MAX_DECISION or self._sizes[position] + _cost(entry) > MAX_CONTROL:
            return False
        if self.succession and position < self.succession.kept:
            return True  # the succession's chain hash is checked instead
        term, fork = self._term_at(position), self.forks.get(entry.term)
        if fork is not None and position >= fork.stop - 1 and not self._is_overruled(entry.term):
            return False
        return entry.term == term or self._begins(term, entry)

    def _is_overruled(self, term: int) -> bool:
        """Return whether an election has kept a term's decisions, so that a fork of the term changes
        nothing."""
        return self._follows(term, self.term)

    def _is_later(self, position: int, entry: Entry, chain: bytes) -> bool:
        """Return whether a signed decision replaces ours at the same position. It does if it begins a later
        term. It also does if two keys were elected for the same term and its chain hash is the lower one."""
        ours = self.entries[position]
        if self.succession and position < self.succession.kept:
            return False
        if entry.term != ours.term or self._is_fork(position, entry):
            return entry.term > ours.term
        return chain < self.chains[position + 1]

    def _is_fork(self, position: int, entry: Entry) -> bool:
        """Return whether one key has signed both this decision and ours at the same position."""
        ours = self.entries[position]
        return entry.term == ours.term and self._keys_at(position, entry) == self._keys_at(position, ours)

    def _beyond_the_fork(self, first: int, entries: Sequence[Entry]) -> ControlFeed | None:
        """Return the feed with `entries` if an election in them has settled the present fork; else None."""
        trial = self.copy()
        del trial.forks[self.term]
        grown = trial.add(first, entries)
        return None if isinstance(grown, ControlFork) or trial.term <= self.term else trial

    def _append(self, entry: Entry, chain: bytes) -> None:
        self.entries.append(entry)
        self.chains.append(chain)
        self._sizes.append(self._sizes[-1] + _cost(entry))
        self._take_turn(self.stop - 1, entry)

    def _take_turn(self, position: int, entry: Entry) -> None:
        match turn_of(entry.record):
            case StandIns(keys=named):
                keys, members = tuple(one.key for one in named), tuple(one.member for one in named)
                self._named.append(_Turn(position, entry.term, keys, members))
            case Elected(key=key):
                self._elected.append(_Turn(position, entry.term, (key,)))

    def _truncate(self, stop: int) -> None:
        del self.entries[stop:]
        del self.chains[stop + 1 :]
        del self._sizes[stop + 1 :]
        for turns in self._named, self._elected:
            while turns and turns[-1].position >= stop:
                turns.pop()

    # -- signatures --------------------------------------------------------------------------------

    def _keys(self, term: int) -> set[bytes]:
        """Return the keys that sign in a term. There are two if the deputies have signed two successions for
        it, and none if the term is unknown."""
        if term % self.authority.terms:
            place = bisect_left(self._elected, term, key=_TERM)
            return {turn.keys[0] for turn in self._elected[place : place + 1] if turn.term == term}
        if term == 0:
            return {self.authority.organiser}
        return {succession.key for succession in self.successions.values() if succession.term == term}

    def _key_of(self, term: int) -> bytes | None:
        keys = self._keys(term)
        return next(iter(keys)) if len(keys) == 1 else None

    def _lasting(self, term: int) -> bool:
        """Return whether a term is valid: it is the first term, has exactly one succession, or begins with a
        stored election."""
        if term % self.authority.terms:
            return bool(self._keys(term))
        same = sum(succession.term == term for succession in self.successions.values())
        return term == 0 or same == 1

    def _keys_at(self, position: int, entry: Entry) -> set[bytes]:
        """Return the keys that may sign a decision. An election is signed by the elected key."""
        turn = turn_of(entry.record)
        if isinstance(turn, Elected) and entry.term != self._term_at(position):
            return {turn.key}
        return self._keys(entry.term)

    def _is_signed(self, position: int, entry: Entry, before: bytes) -> bool:
        """Return whether a decision is signed by the key of its term; `before` is the chain hash before it.
        An election also needs the ballots of more than half of the stand-ins."""
        chain = extend(before, entry.term, entry.record)
        message = decision_message(self.authority.run_id, entry.term, position + 1, chain)
        keys = sorted(self._keys_at(position, entry))
        if not any(signed_by(key, message, entry.signature) for key in keys):
            return False
        turn = turn_of(entry.record)
        return (
            entry.term == self._term_at(position)
            or not isinstance(turn, Elected)
            or self._is_elected(position, entry.term, before, turn)
        )

    def _is_elected(self, position: int, term: int, chain: bytes, elected: Elected) -> bool:
        stand_ins = self._stand_ins_at(position, term)
        message = election_message(self.authority.run_id, term, position, chain, elected.key)
        valid = sum(
            ballot.stand_in < len(stand_ins)
            and signed_by(stand_ins[ballot.stand_in], message, ballot.signature)
            for ballot in elected.ballots
        )
        return elected.key in stand_ins and 2 * valid > len(stand_ins)

    def _signed(self, term: int, stop: int, chain: bytes, signature: bytes) -> bool:
        message = decision_message(self.authority.run_id, term, stop, chain)
        return any(signed_by(key, message, signature) for key in sorted(self._keys(term)))


def double_vote(one: Statement, other: Statement) -> DoubleVote | None:
    """Return the proof that one stand-in has elected two keys for one term; None if these two statements do
    not show that."""
    if not _elect_two(one, other):
        return None
    stripped = replace(one, entries=()), replace(other, entries=())
    return DoubleVote(stripped, (hash_of(one.entries), hash_of(other.entries)))


def _elect_two(one: Statement, other: Statement) -> bool:
    return (
        (one.key, one.voted) == (other.key, other.voted)
        and one.candidate != other.candidate
        and b"" not in (one.candidate, other.candidate)
    )


def _cost(entry: Entry) -> int:
    return len(entry.record) + ENTRY_COST


def _last_before(turns: list[_Turn], position: int) -> _Turn | None:
    place = bisect_left(turns, position, key=_POSITION)
    return turns[place - 1] if place else None


def turn_of(record: bytes) -> StandIns | Elected | None:
    """Return the decision of a record if it names stand-ins or begins a term; else None."""
    if record[1:2] not in _TURNS:
        return None
    decision = decisions.read(record).decision
    return decision if isinstance(decision, StandIns | Elected) else None
