"""Measures the time of a run's digest after a change, and of a full Summary for a peer.

    python benchmarks/digest.py --feeds 1 1000 65536

All times are CPU time. For the digest, it is the median over some hundred changes of random feeds. A full
Summary, with its encoding, is measured twice: the first one of a frontier, and one after a single change.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from random import Random
from statistics import median
from time import process_time

from sfprotocol import anti_entropy, wire_codec
from sfprotocol.frontier import Frontier
from sfprotocol.messages import Feed, RunParameters

RUN = RunParameters(bytes(32), epoch_updates=1024, update_budget=1 << 31, scalar_bytes=2, scalar_limit=1000)


def seconds(work: Callable[[], object]) -> float:
    begun = process_time()
    work()
    return process_time() - begun


def tell(frontier: Frontier) -> None:
    """Encode all messages of a full Summary."""
    for page in anti_entropy.pages(frontier, frontier.claims()):
        wire_codec.encode(page, *RUN.form)


def measure(feeds: int, changes: int) -> None:
    """Measure a run with `feeds` feeds, and print its line."""
    random = Random(feeds)
    frontier = Frontier(RUN)
    names = [Feed(random.randbytes(32), 0) for _ in range(feeds)]
    for feed in names:
        frontier.advance(feed, 1, random.randbytes(32), 0)
    first = seconds(frontier.digest)
    changing, digesting = [], []
    for _ in range(changes):
        feed, chain = random.choice(names), random.randbytes(32)
        following = frontier.next(feed) + 1
        changing.append(seconds(lambda: frontier.advance(feed, following, chain, 0)))  # noqa: B023
        digesting.append(seconds(frontier.digest))
    told = seconds(lambda: tell(frontier))
    frontier.advance(names[0], frontier.next(names[0]) + 1, random.randbytes(32), 0)
    again = seconds(lambda: tell(frontier))
    claims = seconds(frontier.claims)
    change, digest = 1e6 * median(changing), 1e6 * median(digesting)
    print(f"{feeds:,} feeds: change {change:.1f} us, digest {digest:.0f} us; {1e3 * first:.1f} ms at start")
    print(f"  full Summary {1e3 * told:.1f} ms, again {1e3 * again:.1f} ms (entries {1e3 * claims:.2f})")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--feeds", type=int, nargs="+", default=[1, 1000, 65_536])
    parser.add_argument("--changes", type=int, default=300)
    given = parser.parse_args()
    for feeds in given.feeds:
        measure(feeds, given.changes)


if __name__ == "__main__":
    main()
