"""The runs that are simulated: an open one, and organised ones of seconds, with their keys and what their
organiser does and says."""

from __future__ import annotations

from random import Random

from sflab.simulator.world.keys import origin_of, signing_key
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Data, Model, OrganisedSection
from sfnode.manifest.task import Task
from sfnode.manifest.training import Training
from sfnode.organising.evaluation.judging import Judgement, at_rate
from sfnode.organising.policy import Admission, OrganiserPolicy
from sfprotocol.counting import Counting
from sfprotocol.decisions import RateFrom

OPEN_RUN = Manifest(
    name="simulated",
    model=Model(source="none", digest="0" * 64, targets=("a:8x4", "b:4x8")),
    task=Task(kind="text", template="{text}"),
    data=Data(train="builtin:reviews:train"),
    training=Training(rank=4, epoch_updates=256, update_budget=1 << 20, scalar_limit=1000),
)

ORGANISER, SUCCESSOR = "organiser", "successor"
"""Names of the keys that sign decisions: at first, and after a succession."""

DEPUTIES = ("deputy-1", "deputy-2", "deputy-3")

VOTES = 2

RATE = 1 << 22
"""Rate of the first epoch, in units of 2^-32."""


def falling(counting: Counting) -> Judgement:
    """Judge that all counts, at a rate that falls to 0 when the budget is reached."""
    left = max(0, counting.budget - counting.counted)
    return at_rate(RATE * left // max(1, counting.budget))(counting)


POLICY = OrganiserPolicy(
    target_updates=48,
    longest_epoch=4.0,
    seal_wait=5.0,
    admission=Admission.ANYONE,
    admissions_per_minute=600.0,
    work_bits=0,
    quota=64,
    young_share=0.5,
    share=0.5,
    amend_after=40.0,
    checkpoint_epochs=3,
    update_forwards=8,
)
"""A policy for runs of seconds."""

FACTORS = (0, 2048, 4096, 6963)
"""Factors of seals where they are judged: 0, 1/2, 1 and 1.7."""


def manifest(seed: int) -> Manifest:
    """Return the manifest of an organised run with keys of this seed."""
    organised = OrganisedSection(
        organiser=origin_of(signing_key(seed, ORGANISER)).hex(),
        deputies=tuple(origin_of(signing_key(seed, name)).hex() for name in DEPUTIES),
        votes=VOTES,
        quota=POLICY.quota,
        subspace_epochs=4,
    )
    training = OPEN_RUN.training.model_copy(update={"learning_rate": RATE / 2**32})
    return OPEN_RUN.model_copy(
        update={"admission": "organised", "organised": organised, "training": training}
    )


def anything(counting: Counting) -> Judgement:
    """Judge at random, the same by the same decisions: an organiser that was restarted says nothing else."""
    random, coming = Random(f"{counting.decisions}/judge"), counting.open_epoch + 1
    rates = {coming + random.randint(0, 3): random.randint(0, 1 << 23) for _ in range(random.randint(0, 2))}
    earlier = [skipped for number in range(len(counting.members)) for skipped in counting.skipped(number)]
    return Judgement(
        random.choice(FACTORS),
        frozenset(number for number in counting.moved(counting.sealed) if random.random() < 0.2),
        frozenset(skipped for skipped in earlier if random.random() < 0.5),
        tuple(RateFrom(*rate) for rate in sorted(rates.items())),
    )
