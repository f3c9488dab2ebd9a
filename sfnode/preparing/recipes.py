"""Recipes: the layers that a run trains by default, and its hyperparameters before they are measured."""

from __future__ import annotations

from typing import NamedTuple

from sfnode.manifest.task import Task
from sfnode.manifest.training import Training
from sfnode.models.targets import DEFAULT, UPPER_LINEAR, VALUES, Selection


class Recipe(NamedTuple):
    """Defaults of a kind of run; options of `sfnode init` replace any of them. docs/research-log.md has the
    experiments."""

    layers: Selection
    training: Training
    rounds: int = 0
    """Number of rounds, whatever the budget. With 0 the manifest's `epoch_updates` gives their size."""


HEAD = Recipe(
    Selection(modules=("score",)),
    Training(rank=1024, batch_size=4096, epoch_updates=4, update_budget=256),
    rounds=64,
)
"""First-order run of a linear head in whitened coordinates; transformers adds such a head, `score`, to a
causal model as a classifier. A node keeps the states of its rows, so an update on all rows is nearly free.
About thirty rounds suffice, and the loss on validation rows ends the run."""

HEAD_ZEROTH_ORDER = Recipe(
    HEAD.layers,
    Training(rank=256, batch_size=256, epoch_updates=2_000, update_budget=48_000, decay=0.95),
)
"""Zeroth-order run of a head. An update takes microseconds. With two classes only the columns of V make
different directions, so the rank must be large."""

WORDS = Recipe(
    Selection(modules=(UPPER_LINEAR,)), Training(rank=4, batch_size=8, update_budget=256), rounds=32
)
"""First-order run in which a language model learns a task's answers in words: of the body's last blocks."""

WORDS_ZEROTH_ORDER = Recipe(WORDS.layers, Training(group=8, batch_size=8), rounds=8)
"""Zeroth-order run that learns answers in words. An update on 8 rows at one point takes as many forward
passes as an update on 4 rows at two points, and learns more. An organiser may close rounds with more updates,
so that the run has fewer rounds."""

REWARDS = Recipe(
    Selection(modules=(VALUES,)), WORDS.training.model_copy(update={"update_budget": 96}), rounds=16
)
"""First-order reward run, where an update takes 32 written answers. The trained layers are 3 % of SmolLM2's
parameters, and a step along their gradient improves rewards nearly as much as a step along the gradient of
all parameters."""

REWARDS_ZEROTH_ORDER = Recipe(
    REWARDS.layers, Training(group=16, batch_size=8, update_budget=1024), WORDS_ZEROTH_ORDER.rounds
)
"""Zeroth-order reward run. Answers are written once for a group, four to each prompt."""


def recipe_of(task: Task, head: bool, own: Training | None, *, first: bool) -> Recipe:
    """Return the recipe of a run.

    `head`: whether the run trains only the linear head of a causal model. `own`: the hyperparameters of a
    model that comes with a task. `first`: whether the estimator is first-order. Models that come with sfnode
    write thousands of answers per second. Their first-order reward runs therefore have the budget of WORDS: a
    round then has more updates, and less noise.
    """
    if head:
        return HEAD if first else HEAD_ZEROTH_ORDER._replace(training=own or HEAD_ZEROTH_ORDER.training)
    if first:
        found = REWARDS if task.is_rewarded else WORDS
        if own or task.kind == "sequence-classification":  # a classifier is in none of the last blocks
            return found._replace(layers=DEFAULT, training=WORDS.training)
        return found
    if own or task.kind not in ("classification", "reward"):
        return Recipe(DEFAULT, own or Training())
    return REWARDS_ZEROTH_ORDER if task.is_rewarded else WORDS_ZEROTH_ORDER
