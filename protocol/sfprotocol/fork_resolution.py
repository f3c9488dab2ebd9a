"""Fork resolution: finding, proving and cutting feeds with two histories (SPEC A7, A8, E1-E5).

A segment that does not verify, or a tag that differs from ours, raises the suspicion of a fork. The peer is
then asked for its history of the feed (an inquiry, answered by ordinary segments), and `fork_proofs` compares
this history with ours. A proof of two signed histories cuts the feed and is sent to all neighbours. This
module does not fetch missing updates.
"""

from __future__ import annotations

from dataclasses import dataclass

from sfprotocol import fork_proofs, plumtree, validation
from sfprotocol.anti_entropy import SYNC_INTERVAL
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.events import Action, Counters, Cut, Examine, Examined, LinkId, ShowProof, Trace, Transmit
from sfprotocol.frontier import UNCUT, FeedState, Frontier
from sfprotocol.link import Inquiry, Link
from sfprotocol.messages import Claim, Feed, Position, Proof, Segment, Want
from sfprotocol.own_feed import OwnFeed
from sfprotocol.pulls import Pulls
from sfprotocol.rate_limit import FORGERY_COST, OriginBuckets
from sfprotocol.run_state import NEVER
from sfprotocol.segments import without_front
from sfprotocol.signing import Verify, genesis, sound

SHOW_AGAIN = 10.0
"""Seconds after which a proof is sent again to a peer that does not seem to know it."""


@dataclass(slots=True)
class ForkResolution:
    """The fork resolution of one machine, whose tables it shares."""

    _frontier: Frontier
    _links: dict[LinkId, Link]
    _pulls: Pulls
    _own: OwnFeed
    _origins: OriginBuckets
    _counters: Counters
    _verify: Verify

    # -- suspicion ---------------------------------------------------------------------------------

    def unverified(self, link: Link, state: FeedState, segment: Segment, now: float) -> list[Action]:
        """Handle a segment that does not verify as the continuation of our history: ask for the peer's
        history of the feed (SPEC A7).

        The link is kept until its waste exceeds the limit, because an honest peer may hold the other branch
        of a fork. Raises RemoteProtocolError (SPEC L8) at the limit.
        """
        self._counters.rejected += 1
        self._charge(link, now)
        self._pulls.forget(state.feed, link, now)
        if not state.next:
            avoid(link, state, now)
            return self._pulls.wake(now)
        if state.forked == UNCUT:
            return [*inquire(link, state, self._least(link, state), now), *self._pulls.wake(now)]
        rest = without_front(segment, state.next)
        return [Examine(link.id, state.feed, rest), *self._pulls.wake(now)]

    def ambiguous(self, link: Link, states: list[FeedState], segment: Segment, now: float) -> list[Action]:
        """Handle a segment whose key is shared by several feeds and which continues none of them: find out
        whether one of these feeds is forked."""
        actions: list[Action] = []
        for state in states:
            if segment.first < state.next and under_way(link, state, now):
                self._charge(link, now)
                actions.append(Examine(link.id, state.feed, segment))
            elif validation.due(state, segment) and state.next and state.forked == UNCUT:
                actions += inquire(link, state, self._least(link, state), now, whole=True)
        return actions

    def check_tag(self, link: Link, claim: Claim, now: float) -> list[Action]:
        """Handle the tag of a claim. A tag that differs from ours shows a fork, or a cut that one side does
        not know (SPEC A8)."""
        state = self._frontier.state(claim.feed)
        if state.forked <= claim.next and claim.tag != state.claim().tag:
            return self.show(link, claim.feed, now)
        if claim.next != state.next or claim.tag in (plumtree.NO_TAG, state.claim().tag):
            return []
        shared_key = len(link.names.matching(state.key, self._frontier)) > 1
        return inquire(link, state, self._least(link, state), now, whole=shared_key)

    def _least(self, link: Link, state: FeedState) -> int:
        return max(state.base, self._frontier.kept_from(state.feed, link.floor))

    # -- evidence ----------------------------------------------------------------------------------

    def proven(self, link: Link, proof: Proof, now: float) -> list[Action]:
        """Handle a proof of two histories of one feed (SPEC E1-E4), the cheap checks first.

        Raises RemoteProtocolError for a proof that does not hold.
        """
        if not self._frontier.may_hold(proof.feed):
            return []  # no update of it can count; if that changes, its holders find the fork again
        state = self._frontier.state(proof.feed)
        if not link.names.learn(proof.feed, self._frontier) or proof.cut > state.forked or not state.forked:
            return self.show(link, proof.feed, now)
        if proof.cut == state.forked and proof.chains[0] == state.forked_chain:
            link.shown[proof.feed] = proof.cut, now
            return []
        if not self._origins.may_prove(proof.feed.origin, now):
            self._counters.put_off += 1
            return []  # the peer shows it again (SPEC E3)
        if not sound(proof.feed.origin) or not fork_proofs.holds(self._frontier.run, proof, self._verify):
            raise RemoteProtocolError("E1", "a proof that proves nothing")
        ours = state.next > proof.at or (state.next == proof.at and state.next > 0)
        if proof.cut and proof.at >= state.base and (ours or proof.cut == state.forked):
            return [Examine(link.id, proof.feed, proof)]
        return self.cut(proof, now)

    def examined(self, event: Examined, now: float) -> list[Action]:
        """Compare a peer's segment or proof with our own history of the feed, which was read from the log.

        Raises RemoteProtocolError if the peer has wasted too much (SPEC L8).
        """
        if event.feed not in self._frontier:
            return []  # the feed was evicted meanwhile
        state = self._frontier.state(event.feed)
        if isinstance(event.against, Proof) and not event.against.cut <= state.forked:
            return []
        if state.forked != (event.kept.cut if event.kept else UNCUT):  # the log was read before it was cut
            return [Examine(event.link, event.feed, event.against)]
        finding = fork_proofs.judge(self._frontier.run, state, event, self._verify)
        if isinstance(finding, Proof):
            return self.cut(finding, now)
        link = self._links.get(event.link)
        if link is None or isinstance(event.against, Proof):
            return []
        if finding is not None:
            return self._same(link, state, event, finding, now)
        if len(link.names.matching(state.key, self._frontier)) > 1:
            return []  # the segment was of another feed
        self._charge(link, now)
        return look_further_back(link, state, self._least(link, state), now)

    def _same(self, link: Link, state: FeedState, event: Examined, until: int, now: float) -> list[Action]:
        """Examine the rest of the peer's segment. Up to step `until` its history equals ours."""
        assert isinstance(event.against, Segment)
        if until < min(event.against.stop, state.next):
            return [Examine(link.id, event.feed, without_front(event.against, until))]
        if until >= state.next:
            link.inquiries.pop(event.feed, None)
            self._pulls.heard_of(link, event.feed, event.against.stop, now)
        return []

    # -- consequences ------------------------------------------------------------------------------

    def cut(self, proof: Proof, now: float) -> list[Action]:
        """Cut the feed of a proof, and send the proof to all neighbours (SPEC E3, E4)."""
        feed, at = proof.feed, proof.cut
        state = self._frontier.state(feed)
        if at >= state.forked:
            return []
        self._origins.proved(feed.origin, now)
        stop = state.next
        for link in self._links.values():
            link.inquiries.pop(feed, None)
        self._frontier.cut(feed, at, proof.chains[0] if at else genesis(self._frontier.run.run_id, feed))
        self._counters.cuts += 1
        self._pulls.finish(feed)
        shown = [action for link in self._links.values() for action in self.show(link, feed, now)]
        cut = Cut(proof, max(at, stop) if state.fork_cut == at else at)
        trace: list[Action] = []
        if self._frontier.run.organised and stop > at:  # to compare it with the listed history
            trace.append(Trace(feed, min(state.fork_cut, state.next)))
        return [cut, *trace, *shown, *self._own.taken_back(feed)]

    def show(self, link: Link, feed: Feed, now: float) -> list[Action]:
        """Send the peer the proof that cuts `feed`, if there is one and the peer seems to lack it (SPEC E3).
        Delay it if a proof of the same feed was sent to the peer less than SYNC_INTERVAL ago."""
        state = self._frontier.state(feed)
        if not link.greeted or state.forked == UNCUT:
            return []
        cut, since = link.shown.get(feed, (UNCUT, float("-inf")))
        if cut == state.forked and now - since < SHOW_AGAIN:
            return []
        if now - since < SYNC_INTERVAL:
            link.to_show[feed] = None
            return []
        link.shown[feed] = state.forked, now
        return [ShowProof(link.id, feed)]

    def show_again(self, link: Link, now: float) -> list[Action]:
        """Send the delayed proofs. Without the delay, the proofs of an origin with a thousand forks would use
        up the waste that the peer allows on this link."""
        feeds, link.to_show = list(link.to_show), {}
        return [action for feed in feeds for action in self.show(link, feed, now)]

    def _charge(self, link: Link, now: float) -> None:
        link.waste.charge(FORGERY_COST, len(self._frontier), now)


LOOK_BACK = (64, 4096, None)
"""Distances, in updates, from the end of our feed back to the start of the first, second and third request
for the peer's history. No further request follows once the answer continues our own history. None stands for
a request from the first step that both sides keep. Most forks are short: they concern the few updates that a
restored backup lacked."""

INQUIRY_TIME = 60.0
"""Seconds after which a peer may be asked again about the same feed. So a peer that sends only invalid
segments causes at most three requests a minute for each feed."""

MAX_INQUIRIES = 64
"""Maximum number of feeds under inquiry on one link. Bounds the work that a peer can cause by invalid
segments of many feeds."""


def under_way(link: Link, state: FeedState, now: float) -> bool:
    """Return whether a segment of this feed on the link answers an inquiry."""
    inquiry = link.inquiries.get(state.feed)
    return inquiry is not None and inquiry.until > now and inquiry.stage < len(LOOK_BACK)


def inquire(link: Link, state: FeedState, least: int, now: float, *, whole: bool = False) -> list[Action]:
    """Ask for the peer's history unless we have done so recently or have too many inquiries on this link.

    `least` is the first step that both sides keep. `whole`: whether the first request begins there. This is
    needed for feeds that share a key: a history that begins at a later step and does not follow from ours may
    belong to another feed with that key.
    """
    known = link.inquiries.get(state.feed)
    if known and known.until > now:
        return []
    if len(link.inquiries) >= MAX_INQUIRIES:
        for feed in [feed for feed, inquiry in link.inquiries.items() if inquiry.until <= now]:
            del link.inquiries[feed]
    if len(link.inquiries) >= MAX_INQUIRIES:
        return []
    link.inquiries[state.feed] = Inquiry(now + INQUIRY_TIME, len(LOOK_BACK) - 1 if whole else 0)
    return _ask(link, state, least)


def avoid(link: Link, state: FeedState, now: float) -> None:
    """Request nothing of this feed from the peer for INQUIRY_TIME. An inquiry would be of no use, as we have
    no history of the feed to compare with."""
    inquire(link, state, NEVER, now)
    if known := link.inquiries.get(state.feed):
        known.stage = len(LOOK_BACK)


def look_further_back(link: Link, state: FeedState, least: int, now: float) -> list[Action]:
    """Ask for the peer's history from an earlier step, because its last answer does not continue our
    history."""
    inquiry = link.inquiries.get(state.feed)
    if inquiry is None:
        return inquire(link, state, least, now)
    inquiry.stage += 1
    return _ask(link, state, least)


def _ask(link: Link, state: FeedState, least: int) -> list[Action]:
    stage = link.inquiries[state.feed].stage
    if stage >= len(LOOK_BACK) or least > state.next:
        return []
    back = LOOK_BACK[stage]
    start = least if back is None else max(least, state.next - back)
    return [Transmit(link.id, Want((Position(state.feed, start),)))]
