"""Stand-ins: they confirm decisions by majority, and elect another organiser when the organiser falls silent
(SPEC O21 to O24). This is Raft (Ongaro and Ousterhout 2014) with flooded statements in place of remote calls.

Theory of operation. Each stand-in publishes a signed, numbered Statement with its term, the key that it has
elected, and the undecided decisions that it holds. The newest Statement of each stand-in is flooded to all
nodes, and every step of a stand-in follows from these Statements (`review`). A stand-in stores its own
Statement durably before sending it, so that it keeps the vote in it after a crash.

    role         does                                                becomes
    follower     holds what the organiser proposes, and answers      silent, after LEASE without a beat
                 its statements (its beats)
    silent       says that it hears no organiser; elects a           candidate, once more than half are
                 candidate that holds at least as much as it does    silent and a random time has passed
    candidate    elects itself in a new term                         organiser, if more than half elect it;
                                                                     follower, of an organiser in the same
                                                                     or a later term
    organiser    sends beats; proposes one decision at a time        follower, of an organiser in a later
                                                                     term

    undecided    a decision that some stand-ins hold; nobody else has seen it, and it has no effect
    decided      a decision that more than half hold: it joins the control feed and is sent to everybody

An organiser decides nothing unless more than half of the stand-ins have answered it within LEASE. While a
`StandIns` decision is undecided, every decision and election needs more than half of the former stand-ins and
more than half of the new ones. In a run without stand-ins, this module is not used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from sfprotocol.control_feed import ControlFeed, double_vote, election_message, statement_message, turn_of
from sfprotocol.decisions import Ballot, Elected, StandIns
from sfprotocol.events import Action, Counters, KeepStatement, LinkId, Transmit
from sfprotocol.link import Link
from sfprotocol.messages import ControlFork, Entry, HigherWord, Statement
from sfprotocol.rate_limit import FORGERY_COST, Bucket
from sfprotocol.signing import Sign, signed_by
from sfprotocol.wire_codec import MAX_TAIL

BEAT = 10.0
"""Seconds between two statements (beats) of an organiser, and of a stand-in that hears no organiser."""

LEASE = 60.0
"""Seconds after which an answer of a stand-in to the organiser expires. An organiser without newer answers
decides nothing. LEASE is also the time without a statement of the organiser after which stand-ins look for
another organiser. The organiser makes six statements in that time, so that a lost link or a busy machine
causes no election."""

SPREAD = 10.0
"""Maximum random delay, in seconds, before a stand-in becomes a candidate. Without the delay, several
candidates might divide the votes among themselves, so that none is elected."""

STATEMENT_BYTES, STATEMENT_RATE, STATEMENT_BURST = 320, 8_192.0, 524_288.0
"""STATEMENT_BYTES: size of a statement without entries, in bytes. For each stand-in, a node forwards at most
STATEMENT_RATE bytes of statements a second on average, and STATEMENT_BURST bytes at once. A statement with
the largest possible decision (192 KiB) fits the burst. Only runs with thousands of members have decisions of
that size, and few of them, as their epochs last minutes."""

LEAP = 1024
"""Maximum number of terms by which statements of other stand-ins may be ahead of our own term. Statements
with later terms are ignored. Honest stand-ins do not get that far ahead unnoticed, because each new term
takes them some seconds."""

KEPT_VOTES = 8
"""Maximum number of stored votes of one stand-in. Its later votes are compared with them to find a double
vote. An honest stand-in votes in fewer terms until one of these terms has an elected organiser."""

LAST_NUMBER = (1 << 63) - 1
"""Maximum number of a statement. Statements with higher numbers are ignored. A stand-in continues after the
highest number signed with its key, even if somebody else signed with a copy of the key, so its next number
always fits in 64 bits."""


@dataclass(slots=True)
class _Heard:
    """A statement of another stand-in, with the time of its arrival."""

    said: Statement
    at: float
    bucket: Bucket


class Elections:
    """The stand-ins of one run, as this machine knows them. If this node is a stand-in, also its own
    statement and role."""

    def __init__(
        self,
        feed: ControlFeed,
        links: dict[LinkId, Link],
        counters: Counters,
        *,
        grow: Callable[[tuple[Entry, ...]], list[Action]],
        prove: Callable[[HigherWord, Link | None, float], list[Action]],
        own: Statement | None,
    ) -> None:
        """`grow` adds decisions to the control feed. `prove` stores a proof and sends it to neighbours. `own`
        is our own statement, as stored before."""
        self._feed, self._links, self._counters = feed, links, counters
        self._grow, self._prove = grow, prove
        self._heard: dict[bytes, _Heard] = {}
        self._votes: dict[bytes, list[Statement]] = {}
        """Statements that vote for a candidate, keyed by the stand-in's key: one for each term from the
        present one on."""
        self._own = own
        self._sign: Sign | None = None
        self.key = b""
        """The public key with which this node is a stand-in or offers to become one; empty if there is
        none."""
        self.restored = False
        """Whether our key may have signed votes or decisions that are unknown here, because our data was
        restored from a copy. We then vote for nobody until more than half of the other stand-ins have told
        their terms."""
        self._tail: tuple[int, tuple[Entry, ...]] = (own.decided, own.entries) if own else (0, ())
        self._organiser_at = float("-inf")
        """The time of the organiser's last statement, or the time at which we began to listen."""
        self._beats: dict[int, float] = {}
        """The times of our own recent statements, keyed by statement number."""
        self._answered: dict[bytes, float] = {}
        """The time of our latest statement that a stand-in has answered, keyed by the stand-in's key."""
        self._way: LinkId | None = None
        """The link that brought the organiser's last statement."""
        self._told_at: dict[bytes, float] = {}
        """The time at which a stand-in's statement was last forwarded to all neighbours, keyed by the
        stand-in's key."""
        self._stand_at: float | None = None
        self._stood = 0, 0
        """Number of decisions when we last stood as a candidate, and number of our candidacies since."""
        self._proposed_at = float("-inf")
        """The time of our present proposal."""
        self._hands_to: tuple[bytes, float] | None = None
        """The key that we hand the run over to, and the end of the time in which we wait and decide
        nothing."""
        self._beat_at = self._wake_at = float("-inf")
        self._memo: dict[tuple[bytes, int, tuple[Entry, ...]], ControlFeed | None] = {}
        """A cache of results of `_grown`: the control feed with the proposal of a statement added."""

    # -- what others ask ---------------------------------------------------------------------------

    @property
    def in_use(self) -> bool:
        """Whether the run has stand-ins. If so, a decision needs more than half of them."""
        return bool(self._feed.stand_ins)

    @property
    def takes_part(self) -> bool:
        """Whether this node acts as a stand-in: it has a key, and the decisions or a proposal name this
        key."""
        return self._sign is not None and self._accepts(self.key)

    @property
    def settled(self) -> bool:
        """Whether all votes of our key are known here and stored durably."""
        return not self.restored and self._own is not None

    def leads(self, now: float) -> bool:
        """Return whether this node may make decisions: its key is the organiser's, and more than half of the
        stand-ins have answered its statements within LEASE."""
        if not self.takes_part or self.restored or self._feed.key != self.key or not self._organises():
            return False
        return not self._feed.frozen and self._most(
            key for key, at in self._answered.items() if now - at <= LEASE
        )

    def present(self, now: float) -> list[bytes]:
        """Return the keys of the stand-ins whose statements have arrived within LEASE. Our own key is
        included if we are a stand-in."""
        fresh = {*self._fresh(now), self.key}
        return [key for key in self._feed.stand_ins if key in fresh]

    def _fresh(self, now: float) -> list[bytes]:
        """Return the keys of all other stand-ins that were heard within LEASE."""
        return [key for key, heard in self._heard.items() if now - heard.at <= LEASE]

    def deadline(self) -> float:
        """Return the time at which `review` must be called next; infinity if this node is no stand-in."""
        return self._wake_at if self.takes_part else float("inf")

    # -- what comes in -----------------------------------------------------------------------------

    def hold(self, key: bytes, sign: Sign, now: float, *, restored: bool = False) -> None:
        """Take part as a stand-in with this key from now on. `restored`: whether the key may have signed
        votes or decisions that are unknown here."""
        self.key, self._sign, self.restored = key, sign, restored
        self._organiser_at = self._beat_at = self._wake_at = now
        if self._own and self._own.key != key:
            self._own, self._tail = None, (0, ())
        if self._own and self._own.silent:
            self._organiser_at -= LEASE  # else nodes that restart often would never elect anybody

    def forgive(self, missed: float) -> None:
        """Exclude `missed` seconds from the organiser's silence: this node itself did not run."""
        self._organiser_at += missed

    def introduce(self, link: Link) -> list[Action]:
        """Send a new neighbour the newest statement and the votes of every stand-in."""
        own = [self._told()] if self._own and self._sign else []
        votes = (vote for votes in self._votes.values() for vote in votes)
        newest = (heard.said for heard in self._heard.values())
        told = {(said.key, said.voted, said.candidate): said for said in (*votes, *newest, *own)}
        return [Transmit(link.id, said) for said in told.values()]

    def heard(self, link: Link, said: Statement, now: float) -> list[Action]:
        """Store and forward a statement if it is newer than the stored one of the same stand-in. If it votes
        for another candidate than an earlier vote of that stand-in in the same term, send the proof of this
        double vote.

        Raises RemoteProtocolError (SPEC L8) if the sender has wasted too much.
        """
        before = self._own if said.key == self.key else None
        known = self._heard.get(said.key)
        newest = before or (known.said if known else None)
        proofs = (double_vote(vote, said) for vote in self._votes.get(said.key, ()))
        proof = next(filter(None, proofs), None)
        old = newest is not None and said.number <= newest.number
        if not self._accepts(said.key) or (old and not proof):
            return []
        if said.number > LAST_NUMBER or not all(map(self._is_near, (said.term, said.voted or said.term))):
            return []
        bucket = known.bucket if known else Bucket(STATEMENT_BURST, now)
        size = STATEMENT_BYTES + sum(len(entry.record) for entry in said.entries)
        if not bucket.holds(float(size), now, rate=STATEMENT_RATE):
            return []
        if not signed_by(said.key, statement_message(self._feed.authority.run_id, said), said.signature):
            link.waste.charge(FORGERY_COST, 0, now)
            return []
        bucket.take(float(size), now, rate=STATEMENT_RATE, burst=STATEMENT_BURST)
        self._counters.statements += 1
        if proof:
            return self._prove(proof, None, now)  # to the neighbour, too: it may not know both
        passed = self._pass_on(said, newest, link, now)
        if said.key == self.key and self._sign:
            self._remember(said)
            return [*passed, *self.review(now)]
        self._keep_vote(said)
        self._heard[said.key] = _Heard(said, now, bucket)
        if self._is_organisers(said):
            self._way = link.id
        if self._own and said.term == self._own.term and said.heard in self._beats:
            answered = self._answered.get(said.key, float("-inf"))
            self._answered[said.key] = max(answered, self._beats[said.heard])
        own = self._own
        again = own is not None and said.number == own.heard  # repeated by a neighbour after our restart
        if not again and self._is_organisers(said) and (not own or said.term >= own.term):
            self._organiser_at = now
        return [*passed, *self.review(now)]

    def _keep_vote(self, said: Statement) -> None:
        """Store a vote for a term that is not over. If there are too many, the earliest votes are kept, so
        that later ones cannot displace them."""
        if said.candidate and said.voted >= self._feed.term:
            votes = [one for one in self._votes.get(said.key, ()) if one.voted >= self._feed.term]
            fresh = all(one.voted != said.voted for one in votes)
            self._votes[said.key] = [*votes, said][:KEPT_VOTES] if fresh else votes

    def decide(self, record: bytes, now: float) -> list[Action]:
        """Propose a decision to the stand-ins. Do nothing while another decision is undecided, or while this
        node may not decide (`leads`)."""
        ahead = self._ahead()
        if not self.leads(now) or self._hands_to or ahead.stop > self._feed.stop:
            return []
        self._tail, self._proposed_at = (ahead.stop, (ahead.sign(record, self._signature),)), now
        return [*self._state(now), *self.review(now)]

    def hand_over(self, key: bytes, now: float) -> list[Action]:
        """Hand the run over to the stand-in with this key: vote for it in the next term as soon as no
        proposal of ours is undecided. The stand-in then becomes a candidate without delay, and the other
        stand-ins vote for it, too. Do nothing if this node may not decide (`leads`), or the stand-in is
        away."""
        if not self.leads(now) or key not in self.present(now) or key == self.key:
            return []
        self._hands_to = key, now + LEASE
        return self.review(now)

    def _hand_over(self, now: float) -> list[Action]:
        if not self._hands_to:
            return []
        key, until = self._hands_to
        if now >= until or not self.leads(now):
            self._hands_to = None
            return []
        ahead, own = self._ahead(), self._own
        if ahead.stop > self._feed.stop or (own and own.candidate == key and own.voted > own.term):
            return []
        term = self._latest() + 1
        return self._state(now, voted=term, candidate=key, ballot=self._ballot(term, ahead, key))

    # -- what follows ------------------------------------------------------------------------------

    def review(self, now: float) -> list[Action]:
        """Do everything that follows from the known statements: answer the organiser, vote, become a
        candidate, decide."""
        for key in [key for key in self._heard if not self._accepts(key)]:
            for known in self._heard, self._votes, self._told_at:
                known.pop(key, None)
        self._wake_at = now + BEAT
        if (
            not self.takes_part
            or self._feed.frozen
            or self._feed.misses_decisions
            or self._knows_too_little()
        ):
            return []
        actions = [
            *self._follow(now),
            *self._count_ballots(now),
            *self._elect(now),
            *self._stand(now),
            *self._count_answers(now),
            *self._hand_over(now),
        ]
        if now >= self._beat_at:
            actions += self._state(now)
        later = [at for at in (self._stand_at, self._organiser_at + LEASE) if at is not None and at > now]
        self._wake_at = min(self._beat_at, *later, self._wake_at)
        return actions

    def _follow(self, now: float) -> list[Action]:
        """Take over the proposal of the organiser with the latest term, and answer it. Statements older than
        the last answered one are ignored: others may still send them after a restart."""
        own = self._own
        latest = (own.term, own.heard) if own else (0, 0)
        organisers = [heard.said for heard in self._heard.values() if self._is_organisers(heard.said)]
        said = max(organisers, key=lambda one: one.term, default=None)
        silent = now - self._organiser_at >= LEASE and not self._organises()
        leads_since = said is not None and self._organises() and self._ahead().term >= said.term
        if said is None or (said.term, said.number) < latest or leads_since:
            return self._state(now, silent=silent) if own is None or own.silent != silent else []
        if self._with(said) is not None:
            self._tail = said.decided, said.entries
        ahead = self._ahead()
        same = own and (own.term, own.heard, own.silent) == (said.term, said.number, silent)
        if same and own and (own.stop, own.chain) == (ahead.stop, ahead.chain):
            return []
        return self._state(now, term=said.term, heard=said.number, silent=silent)

    def _elect(self, now: float) -> list[Action]:
        """Elect the candidate of the latest term if the organiser is silent and the candidate holds all that
        we hold."""
        own, ahead = self._own, self._ahead()
        if own is None:
            return []
        standing = [
            one.said
            for one in self._heard.values()
            if now - one.at <= LEASE
            and one.said.candidate == one.said.key
            and one.said.voted == one.said.term > max(own.voted, own.term)
            and one.said.term <= self._reached(now) + LEAP // 2
            and (
                own.silent
                or one.said.key == self._feed.key
                or self._handed_over() == (one.said.term, one.said.key)
            )
            and (theirs := self._with(one.said))
            and (_last(theirs), theirs.stop) >= (_last(ahead), ahead.stop)
        ]
        if not standing:
            return []
        one = max(standing, key=lambda said: (said.term, said.key))
        theirs = self._with(one)
        assert theirs is not None  # true of every statement in `standing`
        ballot = self._ballot(one.term, theirs, one.key)
        return self._state(now, term=one.term, voted=one.term, candidate=one.key, ballot=ballot, heard=0)

    def _stand(self, now: float) -> list[Action]:
        """Become the candidate for a new term, after a delay, if more than half of the stand-ins hear no
        organiser. An organiser does so, too, if others do not answer it or do not hold its proposal because a
        stand-in is in a later term."""
        if not self._may_stand(now):
            self._stand_at = None
            return []
        handed = self._handed_to_us()
        if self._stand_at is None:
            self._stand_at = now if handed else now + self._delay(now)
        if now < self._stand_at:
            return []
        self._stand_at = now + 2 * BEAT + self._delay(now)
        term = handed or self._next_term(now)
        self._stood = self._feed.stop, self._in_vain() + 1
        ballot = self._ballot(term, self._ahead(), self.key)
        told = self._state(now, term=term, voted=term, candidate=self.key, ballot=ballot, heard=0)
        return [*told, *self._count_ballots(now)]

    def _ballot(self, term: int, ahead: ControlFeed, key: bytes) -> bytes:
        """Return our signature that elects a key for a term that begins after `ahead`."""
        run_id = self._feed.authority.run_id
        return self._signature(election_message(run_id, term, ahead.stop, ahead.chain, key))

    def _signature(self, message: bytes) -> bytes:
        assert self._sign is not None  # only a stand-in signs
        return self._sign(message)

    def _handed_over(self) -> tuple[int, bytes] | None:
        """Return (term, key) if the organiser itself has elected another key for a later term; else None."""
        heard = self._heard.get(self._feed.key or b"")
        if heard is None or heard.said.voted <= max(heard.said.term, self._feed.term):
            return None
        return heard.said.voted, heard.said.candidate

    def _handed_to_us(self) -> int:
        """Return the term for which the organiser has elected us; 0 if it has not, or if we have voted in
        that term or a later one."""
        term, key = self._handed_over() or (0, b"")
        return term if key == self.key and self._own and term > max(self._own.voted, self._own.term) else 0

    def _may_stand(self, now: float) -> bool:
        own = self._own
        if self._ahead().stop - self._feed.stop >= MAX_TAIL:
            return False
        if self._handed_to_us():
            return True
        if own and self._organises():
            held_up = self._ahead().stop > self._feed.stop and now - self._proposed_at >= LEASE
            goes_on = self.leads(now) and not held_up
            return self._latest() > own.term and not goes_on and self._most(self._fresh(now))
        silent = [
            key for key, one in self._heard.items() if one.said.silent and now - one.at <= 2 * BEAT + SPREAD
        ]
        return bool(own and own.silent) and self._most(silent)

    def _delay(self, now: float) -> float:
        """Return the seconds until we become a candidate. Stand-ins that hold more decisions go first."""
        drawn = hashlib.blake2b(self.key + self._latest().to_bytes(4, "big"), digest_size=4).digest()
        draw = int.from_bytes(drawn, "big") / 2**32
        ahead = self._ahead()
        held = (_last(ahead), ahead.stop)
        more = any(
            (one.said.last, one.said.stop) > held and now - one.at <= LEASE for one in self._heard.values()
        )
        return SPREAD * draw + (2 * BEAT if more else 0.0)

    def _count_ballots(self, now: float) -> list[Action]:
        """Begin our term once more than half of the stand-ins have elected us."""
        own, ahead = self._own, self._ahead()
        if not self._stands() or own is None:
            return []
        message = election_message(self._feed.authority.run_id, own.term, ahead.stop, ahead.chain, self.key)
        for_us = {self.key: self._signature(message)} | {
            key: one.said.ballot
            for key, one in self._heard.items()
            if (one.said.voted, one.said.candidate) == (own.term, self.key)
            and signed_by(key, message, one.said.ballot)
        }
        if not self._most(for_us):
            return []
        places = enumerate(ahead.stand_ins)
        ballots = tuple(Ballot(place, for_us[key]) for place, key in places if key in for_us)
        begun = ahead.elect(own.term, Elected(self.key, ballots), self._signature)
        self._tail = self._feed.stop, (*ahead.entries[self._feed.stop :], begun)
        self._stand_at, self._answered, self._proposed_at = None, {}, now
        return self._state(now)

    def _count_answers(self, now: float) -> list[Action]:
        """Decide our proposal once more than half of the stand-ins hold it."""
        ahead = self._ahead()
        if not self._organises() or ahead.stop == self._feed.stop:
            return []
        held = [
            key
            for key, one in self._heard.items()
            if one.said.term == ahead.term
            and (
                (one.said.stop, one.said.chain) == (ahead.stop, ahead.chain) or one.said.decided >= ahead.stop
            )
        ]
        if not self._most(held):
            return []
        return self._grow(tuple(ahead.entries[self._feed.stop :]))  # which tells others that it is decided

    # -- our own statement -------------------------------------------------------------------------

    def _state(self, now: float, **changes: object) -> list[Action]:
        """Make a new statement with these `changes`: durable first, then sent to all neighbours."""
        ahead, own = self._ahead(), self._own
        entries = tuple(ahead.entries[self._feed.stop :])
        said = replace(
            own or _blank(self.key, ahead.term),
            number=own.number + 1 if own else 1,
            decided=self._feed.stop,
            stop=ahead.stop,
            last=_last(ahead),
            chain=ahead.chain,
            entries=entries,
            **changes,  # type: ignore[arg-type]
        )
        if self._organises(said):
            said = replace(said, heard=said.number, silent=False)
        self._own, self._beat_at = said, now + BEAT
        self._tail = said.decided, entries
        self._beats = {number: at for number, at in self._beats.items() if now - at <= LEASE} | {
            said.number: now
        }
        return [KeepStatement(said), *self._pass_on(self._told(), own, None, now)]

    def _pass_on(
        self, said: Statement, before: Statement | None, source: Link | None, now: float
    ) -> list[Action]:
        """Send a statement to all neighbours but the `source`. A statement that only answers the organiser is
        sent on the link that brought the organiser's last statement, and to all neighbours at most once every
        half beat."""
        links = [link for link in self._links.values() if link.greeted]
        if before and _stance(before) == _stance(said) and not self._is_organisers(said):
            way = [link for link in links if link.id == self._way]
            if (way or self._organises()) and now - self._told_at.get(said.key, now - BEAT) < BEAT / 2:
                links = [] if self._organises() else way
            else:
                self._told_at[said.key] = now
        return [Transmit(link.id, said) for link in links if link is not source]

    def _told(self) -> Statement:
        """Return our signed statement for others; with entries only if we organise or are a candidate."""
        assert self._own is not None
        proposes = self._organises() or self._stands()
        told = self._own if proposes else replace(self._own, entries=())
        return replace(told, signature=self._signature(statement_message(self._feed.authority.run_id, told)))

    def _remember(self, said: Statement) -> None:
        """Take over a statement of our own key that is unknown here, because this node's folder was restored
        or is old."""
        assert self._own is None or said.number > self._own.number
        own = self._own
        term, voted = max(said.term, own.term if own else 0), max(said.voted, own.voted if own else 0)
        self._own = replace(said, term=term, voted=voted, entries=own.entries if own else ())
        self.restored = True

    def _knows_too_little(self) -> bool:
        """Return whether our key may still have made promises that are unknown here. This ends once more than
        half of the other stand-ins have told their terms; we then never vote in these terms."""
        if self.restored:
            others = [key for key in self._feed.stand_ins if key != self.key]
            if 2 * sum(key in self._heard for key in others) <= len(others):
                return True
            self.restored, latest = False, self._latest()
            base = self._own or _blank(self.key, latest)
            self._own = replace(base, term=latest, voted=latest + 1, candidate=b"", ballot=b"", heard=0)
        return False

    # -- what is known -----------------------------------------------------------------------------

    def _organises(self, said: Statement | None = None) -> bool:
        """Return whether our key signs the next decision, in our own term."""
        own, ahead = said or self._own, self._ahead()
        return own is not None and not _may_not(own) and (ahead.key, ahead.term) == (self.key, own.term)

    def _stands(self) -> bool:
        """Return whether we are a candidate that is not elected yet."""
        own = self._own
        return bool(own and own.candidate == self.key and own.voted == own.term and not self._organises())

    def _is_organisers(self, said: Statement) -> bool:
        """Return whether a statement is from the organiser of its term."""
        if _may_not(said):
            return False
        if (said.key, said.term) == (self._feed.key, self._feed.term):
            return True
        ahead = self._with(said)
        return ahead is not None and (ahead.key, ahead.term) == (said.key, said.term)

    def _latest(self) -> int:
        """Return the latest plausible term of any stand-in."""
        terms = [max(one.said.term, one.said.voted) for one in self._heard.values()]
        return max([self._ours(), *filter(self._is_near, terms)])

    def _next_term(self, now: float) -> int:
        """Return the first term in which, according to their statements, more than half of the stand-ins can
        still elect us.

        A single stand-in in a late term, honest or not, does not raise it. As stand-ins may lie about their
        terms, one more of the later terms is taken into account after each failed candidacy.
        """
        return 1 + max(self._ours(), self._reached(now, self._in_vain()))

    def _reached(self, now: float, more: int = 0) -> int:
        """Return the latest term of those stand-ins that are in the earliest terms: as many as make more than
        half together with us, and `more` further ones. Terms that are too late for the other stand-ins to
        accept are left out."""
        told_by = {key: self._heard[key].said for key in self._fresh(now)}
        terms = {key: max(said.term, said.voted) for key, said in told_by.items()}
        reached = 0
        for group in self._groups():
            told, half = sorted(terms[key] for key in group if key in terms), len(group) // 2
            heard_of = max(told[:half], default=0) + LEAP // 2
            reached = max([reached, *(term for term in told[: half + more] if term <= heard_of)])
        return reached

    def _in_vain(self) -> int:
        """Return the number of our candidacies since the last decision."""
        stop, times = self._stood
        return times if stop == self._feed.stop else 0

    def _ours(self) -> int:
        """Return the latest term in our own statement and decisions."""
        return max([self._ahead().term, *([self._own.term, self._own.voted] if self._own else [])])

    def _is_near(self, term: int) -> bool:
        """Return whether a term is plausible: of the same succession and at most LEAP after ours. Other terms
        are ignored, so that one stand-in alone cannot use up all terms."""
        terms = self._feed.authority.terms
        return term // terms == self._feed.term // terms and term <= self._ours() + LEAP

    def _ahead(self) -> ControlFeed:
        """Return the control feed with the undecided decisions that we hold."""
        return self._grown(*self._tail) or self._feed

    def _with(self, said: Statement) -> ControlFeed | None:
        """Return the control feed with a statement's proposal; None if it does not follow from our
        decisions."""
        if said.decided > self._feed.stop:
            return None
        ahead = self._grown(said.decided, said.entries) or self._feed
        return ahead if (ahead.stop, ahead.chain) == (said.stop, said.chain) else None

    def _grown(self, first: int, entries: tuple[Entry, ...]) -> ControlFeed | None:
        """Return the control feed with these entries added; None if they do not follow from our decisions or
        bring nothing new."""
        if not entries or first + len(entries) <= self._feed.stop or first > self._feed.stop:
            return None
        asked = self._feed.chain, first, entries
        if asked not in self._memo:
            ahead = self._feed.copy()
            grown = ahead.add(first, entries)
            follows = ahead.stop > self._feed.stop and ahead.chains[self._feed.stop] == self._feed.chain
            found = ahead if follows and not isinstance(grown, ControlFork) else None
            self._memo = {**dict([*self._memo.items()][-3:]), asked: found}
        return self._memo[asked]

    def _groups(self) -> list[Collection[bytes]]:
        """Return the groups of stand-ins of which majorities are needed: the present stand-ins, and those
        that each undecided decision names."""
        return [group for group in (self._feed.stand_ins, *_named(self._tail[1])) if group]

    def _accepts(self, key: bytes) -> bool:
        """Return whether we accept statements with this key. Accepted are the keys of all stand-ins,
        including stand-ins that only a proposal names, if the proposal follows from our decisions. Keys with
        a proven double vote are not accepted."""
        if key in self._feed.liars:
            return False
        followed = (one.said.entries for one in self._heard.values() if self._with(one.said))
        return key in self._feed.stand_ins or any(
            key in group for entries in (self._tail[1], *followed) for group in _named(entries)
        )

    def _most(self, keys: Iterable[bytes]) -> bool:
        """Return whether these keys and ours are more than half of each group of stand-ins (`_groups`). Keys
        with a proven double vote count towards the size of a group, but not towards its majority."""
        with_us = {*keys, self.key} - self._feed.liars.keys()
        return all(2 * sum(key in with_us for key in group) > len(group) for group in self._groups())


def _stance(said: Statement) -> tuple[int, int, bytes, bool]:
    """Return those fields of a statement of which all nodes must learn at once when they change."""
    return said.term, said.voted, said.candidate, said.silent


def _may_not(said: Statement) -> bool:
    """Return whether a stand-in must not organise in its term, because it has voted in a later one. The
    organiser elected in the later term need not keep further decisions of the earlier one. A restored
    stand-in also votes in a later term, as its key may have signed decisions of this term that it has
    lost."""
    return said.voted > said.term


def _blank(key: bytes, term: int) -> Statement:
    """Return the statement of a stand-in that has made none yet."""
    return Statement(key, 0, term, 0, b"", b"", 0, 0, 0, bytes(32), 0, False, (), bytes(64))


def _last(feed: ControlFeed) -> int:
    """Return the term of the last decision."""
    return feed.entries[-1].term if feed.entries else 0


def _named(entries: Iterable[Entry]) -> list[tuple[bytes, ...]]:
    """Return the keys of the stand-ins, for each StandIns among these decisions."""
    turns = [turn_of(entry.record) for entry in entries]
    return [tuple(one.key for one in turn.keys) for turn in turns if isinstance(turn, StandIns)]
