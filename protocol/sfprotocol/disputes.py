"""What is done about histories of one feed that contradict each other (SPEC A7, A8, E1-E4).

Suspicion comes from segments that do not verify and from tags that differ; the peer is then asked for its
history (inquiry), which is laid beside ours (forks), and what proves two signed histories cuts the feed and
is shown to everybody. What makes a node ask for what it lacks, this module does not know.
"""

from __future__ import annotations

from collections.abc import Callable

from sfprotocol import admission, flood, forks, inquiry
from sfprotocol.budget import FORGERY_COST
from sfprotocol.errors import RemoteProtocolError
from sfprotocol.events import Action, Counters, Cut, Examine, Examined, LinkId, ShowProof
from sfprotocol.flood import Link
from sfprotocol.frontier import UNCUT, FeedState, Frontier
from sfprotocol.messages import Claim, Feed, Proof, Segment
from sfprotocol.signing import Verify, genesis, sound
from sfprotocol.sync import SYNC_INTERVAL, Pulls

SHOW_AGAIN = 10.0
"""Seconds after which a peer that does not seem to know a proof is sent it again."""


class Disputes:
    """Of one machine, whose tables it shares."""

    def __init__(
        self,
        frontier: Frontier,
        links: dict[LinkId, Link],
        pulls: Pulls,
        counters: Counters,
        *,
        verify: Verify,
        after_cut: Callable[[Feed], list[Action]],
    ) -> None:
        """`after_cut`: what else follows when a feed was cut."""
        self._run = frontier.run
        self._frontier = frontier
        self._links = links
        self._pulls = pulls
        self._counters = counters
        self._verify = verify
        self._after_cut = after_cut

    def unverified(self, link: Link, state: FeedState, segment: Segment, now: float) -> list[Action]:
        """Garbage, or another history of the feed: this peer is asked where its history joins ours (A7).

        The link stays, within its budget: an honest peer that holds the other branch of a fork must not be
        cut off.
        """
        self._counters.rejected += 1
        link.charge(FORGERY_COST, self._frontier, now)
        self._pulls.forget(state.feed, link, now)
        if not state.next:
            inquiry.avoid(link, state, now)
            return self._pulls.wake(now)
        if state.cut == UNCUT:
            return [*inquiry.begin(link, state, now), *self._pulls.wake(now)]
        rest = admission.without_front(segment, state.next)
        return [Examine(link.id, state.feed, rest), *self._pulls.wake(now)]

    def check_tag(self, link: Link, claim: Claim, now: float) -> list[Action]:
        """At equal positions, other tags mean other histories, or a cut that one side does not know (A8)."""
        state = self._frontier.state(claim.feed)
        if state.cut <= claim.next and claim.tag != state.claim().tag:
            return self.show(link, claim.feed, now)
        if claim.next != state.next or claim.tag in (flood.NO_TAG, state.claim().tag):
            return []
        ambiguous = len(link.feeds_of(state.key, self._frontier)) > 1
        return inquiry.begin(link, state, now, whole=ambiguous)

    def proven(self, link: Link, proof: Proof, now: float) -> list[Action]:
        """Two histories of one feed, signed by its origin (SPEC E1-E4). The cheap checks come first."""
        state = self._frontier.state(proof.feed)
        if not link.learn(proof.feed, self._frontier) or proof.cut > state.cut or not state.cut:
            return self.show(link, proof.feed, now)
        if proof.cut == state.cut and proof.chains[0] == state.cut_chain:
            link.shown[proof.feed] = proof.cut, now
            return []
        if not sound(proof.feed.origin) or not forks.holds(self._run, proof, self._verify):
            raise RemoteProtocolError("E1", "a proof that proves nothing")
        ours = state.next > proof.at or (state.next == proof.at and state.next > 0)
        if proof.cut and (ours or proof.cut == state.cut):
            return [Examine(link.id, proof.feed, proof)]
        return self.cut(proof, now)

    def examined(self, event: Examined, now: float) -> list[Action]:
        """Our own history is at hand. Raises RemoteProtocolError when the peer has wasted too much (L8)."""
        state = self._frontier.state(event.feed)
        if isinstance(event.against, Proof) and not event.against.cut <= state.cut:
            return []
        if state.cut != (event.kept.cut if event.kept else UNCUT):  # the log was read before it was cut
            return [Examine(event.link, event.feed, event.against)]
        finding = forks.judge(self._run, state, event, self._verify)
        if finding.proof:
            return self.cut(finding.proof, now)
        link = self._links.get(event.link)
        if link is None or isinstance(event.against, Proof):
            return []
        if finding.same_until is None and len(link.feeds_of(state.key, self._frontier)) > 1:
            return []  # it was another feed's
        if finding.same_until is None:
            return self._strange(link, state, now)
        return self._same(link, state, event, finding.same_until, now)

    def _strange(self, link: Link, state: FeedState, now: float) -> list[Action]:
        """What the peer has shown does not follow from our past."""
        link.charge(FORGERY_COST, self._frontier, now)
        return inquiry.look_further_back(link, state, now)

    def _same(self, link: Link, state: FeedState, event: Examined, until: int, now: float) -> list[Action]:
        """Up to step `until` the peer's history is ours; look at the rest of what it has shown."""
        assert isinstance(event.against, Segment)
        if until < min(event.against.stop, state.next):
            return [Examine(link.id, event.feed, admission.without_front(event.against, until))]
        if until >= state.next:
            link.inquiries.pop(event.feed, None)
            self._pulls.heard_of(link, event.feed, event.against.stop, now)
        return []

    def cut(self, proof: Proof, now: float) -> list[Action]:
        """The only place where the frontier moves back; tell everybody first (SPEC E3, E4)."""
        feed, at = proof.feed, proof.cut
        state = self._frontier.state(feed)
        if at >= state.cut:
            return []
        stop = max(at, state.next)
        for link in self._links.values():
            link.inquiries.pop(feed, None)
        self._frontier.cut(feed, at, proof.chains[0] if at else genesis(self._run.run_id, feed))
        self._counters.cuts += 1
        self._pulls.finish(feed)
        shown = [action for link in self._links.values() for action in self.show(link, feed, now)]
        return [Cut(proof, stop), *shown, *self._after_cut(feed)]

    def show(self, link: Link, feed: Feed, now: float) -> list[Action]:
        """Send the proof that `feed` is cut; nothing if it is not cut or the peer has it (SPEC E3)."""
        state = self._frontier.state(feed)
        if not link.greeted or state.cut == UNCUT:
            return []
        cut, since = link.shown.get(feed, (UNCUT, float("-inf")))
        if cut == state.cut and now - since < SHOW_AGAIN:
            return []
        if now - since < SYNC_INTERVAL:
            link.reshow[feed] = None
            return []
        link.shown[feed] = state.cut, now
        return [ShowProof(link.id, feed)]

    def show_again(self, link: Link, now: float) -> list[Action]:
        """What was put off, as an origin with a thousand forks must not spend its neighbours' budget."""
        feeds, link.reshow = list(link.reshow), {}
        return [action for feed in feeds for action in self.show(link, feed, now)]
