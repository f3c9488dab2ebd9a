"""What colluding validators can do: work of hostile members that counts, and honest work that waits.

The evidence about members and the panels' rules as they ship, on Gaussian scores: no model and no network.
Of `--members` three in ten are hostile and flip their signs (`--random`: they say nothing); some make up to
four times as many updates in an epoch as others. Of `--named` validators a share colludes, knows who is on a
panel, and praises hostile members and slanders honest ones. What different rows say of the same updates has
half of its variance in common; in one epoch of twenty the step goes too far for some rows, and all scores by
these are off.

    python -m tests.bench.validators --rule checked --share 0.3 --lie always --updates 32

Rules: `own`, the organiser measures every epoch; `seldom`, one of twenty, and there are no validators; `mean`
of the findings; `median`, bounded; `checked`, as it ships, with time for a check in one of `--every` epochs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sfnode.organising.evaluation.evidence import (
    RECOUNTED_AT_LAST,
    RECOUNTED_FROM,
    SCORE_ONE,
    MembersEvidence,
)
from sfnode.organising.evaluation.panel import BEYOND, EVIDENT, QUORUM, PanelFinding, apart, disputed, middle
from sfprotocol.decisions import INCARNATIONS, Part, Worth
from sfprotocol.validators import PANEL

F64 = NDArray[np.float64]

HOSTILE = 0.3
DRIFT = 0.25
"""Mean score of one honest update by 32 rows, where scalars correlate by 0.35 (`evidence_cost.drift`)."""
SPREAD = 0.3
"""Members agree with validation rows by this share more or less."""
COMMON = 0.5
"""Share of a score's variance that findings have in common."""
BENT, BENT_BY = 0.05, 2.0
"""Share of epochs in which the scores by some rows are all off, and the standard deviation of by how much."""
UNEVEN = 2.0
"""Some members make as many times more updates than usual, and others fewer."""

Lie = Callable[[F64, F64, bool], F64 | None]
"""From the true scores, those that a liar wants to have believed, and whether liars are most of the panel, to
what it tells; None if it says nothing."""


def _focus(scores: F64, wanted: F64, most: bool) -> F64:
    """Slander one honest member, and tell the truth of all others."""
    return np.append(scores[:-1], wanted[-1]) if most else scores


LIES: dict[str, Lie] = {
    "always": lambda scores, wanted, most: wanted,
    "wildly": lambda scores, wanted, most: 100 * wanted,
    "if most": lambda scores, wanted, most: wanted if most else scores,
    "a little": lambda scores, wanted, most: scores + 1.5 * np.sign(wanted),
    "one victim": _focus,
    "outliers": lambda scores, wanted, most: scores,  # of some honest members a weight that is far too large
    "alone": lambda scores, wanted, most: wanted if most else scores,  # and honest ones come too late
    "silent": lambda scores, wanted, most: None,
}


class Outcome(NamedTuple):
    """What came of a run."""

    counts: float
    """Share of hostile members' updates that count in the end."""
    waits: float
    """Share of honest updates that are skipped at first."""
    lost: float
    """Share of honest updates that never count."""
    revoked: float
    """Honest members whom the evidence has revoked."""
    caught: float
    """Share of hostile members whom it has."""
    measured: float
    """Share of epochs of which there are figures."""
    checks: float
    """Epochs that the organiser has measured itself."""
    liars: float
    """Share of the liars who measure no more in the end."""
    honest: float
    """Honest validators who measure no more in the end."""


class Run:
    """One run of many epochs under one rule."""

    def __init__(
        self,
        seed: int,
        *,
        rule: str = "checked",
        share: float = 0.0,
        lie: str = "always",
        members: int = 20,
        named: int = 20,
        updates: int = 32,
        every: int = 5,
        useless: bool = False,
    ) -> None:
        """`every`: epochs of which the organiser has time to check one."""
        self._rng, self._rule, self._lie, self._every = np.random.default_rng(seed), rule, lie, every
        self.hostile = int(HOSTILE * members)
        self._updates = np.round(updates * UNEVEN ** self._rng.uniform(-1, 1, members)).astype(int)
        self._mean = DRIFT * np.sqrt(self._updates) * (1 + SPREAD * self._rng.uniform(-1, 1, members))
        side = np.where(np.arange(members) < self.hostile, 1.0, -1.0)
        self._wanted = side * (DRIFT * np.sqrt(self._updates) + BEYOND)
        self._mean[: self.hostile] *= 0 if useless else -1
        self._liars = set(range(round(share * named)))
        self._named, self._validators = list(range(named)), named
        self._check_from = 0
        self.origins, self.checks, self.measured = MembersEvidence(), 0, 0
        self._skipped: list[NDArray[np.bool_]] = []
        self._waits = np.zeros((0, members), bool)

    def run(self, epochs: int) -> Outcome:
        for epoch in range(epochs):
            if parts := self._signed(epoch):
                self.measured += 1
                self.origins.take(Worth(epoch, 32, parts))
            self._count()
        return self._outcome(epochs)

    # -- measuring ---------------------------------------------------------------------------------

    def _signed(self, epoch: int) -> tuple[Part, ...]:
        """Return what is signed of an epoch."""
        self._common = self._rng.standard_normal(len(self._mean))
        self._bent = BENT_BY * (self._rng.random() < BENT)
        if self._rule in ("own", "seldom"):
            return () if self._rule == "seldom" and epoch % 20 else self._parts(self._scores())
        found = self._findings()
        if len(found) < QUORUM:
            return ()
        if self._rule == "mean":
            told = [[part.score / SCORE_ONE for part in one.parts] for one in found.values()]
            return self._parts(np.array(told).mean(0))
        parts = middle(list(found.values()))
        if self._rule == "median":
            return parts
        harmful = self.origins.found_harmful_by(Worth(epoch, 0, parts))
        if epoch >= self._check_from and (harmful or disputed(list(found.values()), PANEL)):
            return self._check(epoch, found)
        return tuple(part for part in parts if part.feed // INCARNATIONS not in harmful)

    def _scores(self) -> F64:
        """Return what somebody's rows say."""
        noise = self._rng.standard_normal(len(self._mean))
        off = self._bent * self._rng.standard_normal()
        return self._mean + math.sqrt(COMMON) * self._common + math.sqrt(1 - COMMON) * noise + off

    def _parts(self, scores: F64, weights: F64 | float = 1.0) -> tuple[Part, ...]:
        worths = scores * weights * np.sqrt(self._updates) * 1e6
        told = zip(self._updates.tolist(), worths.tolist(), scores.tolist(), strict=True)
        return tuple(
            Part(64 * n, updates, round(worth), round(score * SCORE_ONE))
            for n, (updates, worth, score) in enumerate(told)
        )

    def _findings(self) -> dict[int, PanelFinding]:
        panel = self._rng.choice(self._named, min(PANEL, len(self._named)), replace=False).tolist()
        most = 2 * len(self._liars.intersection(panel)) > len(panel)
        found = {}
        for validator in panel:
            scores: F64 | None = self._scores()
            weights: F64 | float = 1.0
            if validator in self._liars:
                scores = LIES[self._lie](scores, self._wanted, most)
                if self._lie == "outliers" and most:
                    weights = np.where(np.arange(len(self._mean)) < 2 * self.hostile, 1.0, 100.0)
            elif self._lie == "alone" and most:
                continue
            if scores is not None:
                found[validator] = PanelFinding(32, self._parts(scores, weights))
        return found

    def _check(self, epoch: int, found: dict[int, PanelFinding]) -> tuple[Part, ...]:
        """Return the organiser's own figures; who is far from them measures no more."""
        self._check_from, own = epoch + self._every, self._parts(self._scores())
        self.checks += 1
        sound = np.median([part.score for part in own]) > 0
        gone = {one for one, said in found.items() if sound and apart(said.parts, own).doubt > EVIDENT}
        self._named = [one for one in self._named if one not in gone]
        return own

    # -- what counts -------------------------------------------------------------------------------

    def _count(self) -> None:
        self._skipped.append(np.array([not self.origins.trusts(n) for n in range(len(self._mean))]))
        self._waits = np.vstack([self._waits, self._skipped[-1]]) & ~self._recounted(RECOUNTED_FROM)

    def _recounted(self, least: float) -> NDArray[np.bool_]:
        known = [self.origins.members.get(n) for n in range(len(self._mean))]
        return np.array([one is None or (one.useful >= least and not one.harmful) for one in known])

    def _outcome(self, epochs: int) -> Outcome:
        never = self._waits & ~self._recounted(RECOUNTED_AT_LAST)
        for one in self.origins.outliers:
            never[one.epoch, one.feed // 64] = True
        bad, harmful, gone = self.hostile, self.origins.harmful, self._liars - set(self._named)
        return Outcome(
            counts=float((~never[:, :bad]).mean()),
            waits=float(np.array(self._skipped)[:, bad:].mean()),
            lost=float(never[:, bad:].mean()),
            revoked=sum(member >= bad for member in harmful),
            caught=sum(member < bad for member in harmful) / bad,
            measured=self.measured / epochs,
            checks=self.checks,
            liars=len(gone) / len(self._liars) if self._liars else math.nan,
            honest=self._validators - len(self._named) - len(gone),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rule", action="append", choices=["own", "seldom", "mean", "median", "checked"])
    parser.add_argument("--share", type=float, action="append", help="of validators who collude")
    parser.add_argument("--lie", action="append", choices=list(LIES))
    parser.add_argument("--updates", type=int, action="append", help="of a member in an epoch")
    parser.add_argument("--members", type=int, default=20)
    parser.add_argument("--named", type=int, default=20)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--random", action="store_true", help="hostile members say nothing")
    given = parser.parse_args()
    print("updates | rule | share | lie |", " | ".join(Outcome._fields))
    for updates in given.updates or [32]:
        for rule in given.rule or ["checked"]:
            for share in given.share or [0.3]:
                for lie in given.lie or ["always"]:
                    runs = [
                        Run(
                            seed, rule=rule, share=share, lie=lie, members=given.members, named=given.named,
                            updates=updates, every=given.every, useless=given.random,
                        ).run(given.epochs)
                        for seed in range(given.seeds)
                    ]  # fmt: skip
                    figures = " | ".join(f"{figure:.3f}" for figure in np.array(runs).mean(0))
                    print(f"{updates} | {rule} | {share} | {lie} | {figures}", flush=True)


if __name__ == "__main__":
    main()
