"""The hyperparameters of the update rule: rank and bases, epsilon and learning rate, epochs and budget, the
format of a scalar."""

from __future__ import annotations

import math
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from sfnode.manifest.sections import MAX_EPOCHS, Hex32, Section, Target

MAX_GROUP = 64
"""Maximum number of updates of a group. Subtracting the mean of the 63 others enlarges a scalar's variance by
1/63, and a larger group could save no more than that. An auditor must measure a whole group to check one
scalar, and 64 groups in a step fill a segment (SPEC S4)."""

PUBLISHED_UNIT = 2.0**-3
"""Value of an entry of 1 in bases that are not random (SPEC R10, R12). A column whose values have a root mean
square of 1, as in random bases, then has entries with a root mean square of 8. The largest possible value is
15.9."""

LEAST_EPSILON = 2.0**-24
"""Minimum epsilon. Float16 has no smaller positive number. At usual slopes losses at points this far apart
differ by about 2^-24, the spacing of float32 near 1."""

LEAST_DELTA, MOST_DELTA = 2.0**-40, 2.0**32
"""Bounds of the unit of scalars, beyond which scalars do not show slopes. Below LEAST_DELTA, every slope is 0
or beyond the largest scalar, even at an epsilon of 1, because losses near 1 in float32 are equal or differ by
at least 2^-24. Above MOST_DELTA, a difference of 128 nats is rounded to 0, even at LEAST_EPSILON."""

LEAST_MOVE = 2.0**-126
"""Minimum change of a weight by a scalar of 1, learning_rate times scalar_delta: the smallest normal number
of float32, in which weights are summed."""

FEATURE = struct.Struct(">bh")
"""Scale and mean of a feature in bytes (SPEC R12)."""

MAX_FEATURES = 1 << 17
"""Maximum length of `Training.features`, in characters. It has room for 32,768 features, the number that the
widest models have."""


def features_text(table: Iterable[tuple[int, int]]) -> str:
    """Return the scale (1 to 127) and the mean (16 bits) of each feature as base64 text."""
    return b64encode(b"".join(FEATURE.pack(scale, mean) for scale, mean in table)).decode()


class Training(Section):
    """Hyperparameters of the update rule. Learning rates are per update."""

    estimator: Literal["zeroth-order", "first-order"] = "zeroth-order"
    """Content of an update: a slope along one direction (zeroth-order), or a gradient with a number for every
    cell of the cores (first-order; SPEC U2, U11)."""
    rank: int = Field(default=32, ge=1, le=1024)
    basis: Literal["random", "published", "features"] = "random"
    bases: Hex32 | Literal[""] = ""
    """Digest of the published bases with which the run begins (SPEC R10); empty if it has none."""
    features: Annotated[str, Field(max_length=MAX_FEATURES)] = ""
    """Scales and means of a linear head's features, as `features_text` writes them (SPEC R12); empty for
    another basis."""
    epsilon: float = Field(default=1e-3, gt=0, le=1)
    epsilons: dict[Literal["bfloat16", "float16"], Annotated[float, Field(gt=0, le=1)]] = Field(
        default_factory=dict
    )
    """Epsilon of nodes that compute in a half-precision format, keyed by the format's name (SPEC U2). Nodes
    that compute in a format without an entry use `epsilon`."""
    learning_rate: float = Field(default=6e-6, gt=0, le=1)
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    batch_size: int = Field(default=4, ge=1, le=4096)
    group: int = Field(default=0, ge=0, le=MAX_GROUP)
    """Number of updates that share a mini-batch, each measured at one point and compared with the others
    (SPEC U2). With 0 each update has a mini-batch of its own, and is measured at two points."""
    epoch_updates: int = Field(default=1024, ge=1, le=1 << 32)
    update_budget: int = Field(default=4096, ge=1, le=(1 << 32) - 1)
    decay: float = Field(default=1.0, gt=0, le=1)
    """Factor by which an organised run's earlier changes shrink with each subspace that follows (SPEC O17); 1
    for no decay."""
    scalar_bits: Literal[8, 16] = 16
    scalar_delta: float = Field(default=1 / 64, gt=0, allow_inf_nan=False)
    scalar_limit: int = Field(default=32_767, ge=1, le=32_767)
    norm_limit: int = Field(default=0, ge=0, lt=1 << 32)
    """Maximum norm of an update's scalars (root of the sum of squares) until a seal sets another; 0 in a
    zeroth-order run."""

    @field_validator("rank")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("rank must be a power of two")
        return value

    @field_validator("features")
    @classmethod
    def _are_features(cls, value: str) -> str:
        try:
            table = list(FEATURE.iter_unpack(b64decode(value, validate=True)))
        except (ValueError, struct.error) as error:
            raise ValueError(f"features are base64 of three bytes for each: {error}") from error
        if features_text(table) != value:
            raise ValueError("features are base64 as it is usual, with padding and nothing else")
        if any(scale < 1 for scale, _ in table):
            raise ValueError("scales of features are from 1 to 127")
        return value

    @field_validator("epsilon", "epsilons")
    @classmethod
    def _tells_points_apart(cls, value: float | dict[str, float]) -> float | dict[str, float]:
        if any(one < LEAST_EPSILON for one in (value.values() if isinstance(value, dict) else (value,))):
            raise ValueError(
                f"points nearer than {LEAST_EPSILON:.2g} are the same in float16, and next to the same in "
                "float32; 1e-3 is usual"
            )
        return value

    @field_validator("scalar_delta")
    @classmethod
    def _tells_slopes_apart(cls, value: float) -> float:
        if not LEAST_DELTA <= value <= MOST_DELTA:
            raise ValueError(
                f"in units below {LEAST_DELTA:.2g} every scalar is the largest one, and above "
                f"{MOST_DELTA:.2g} every one is 0; 1/64 is usual"
            )
        return value

    @field_validator("group")
    @classmethod
    def _not_alone(cls, value: int) -> int:
        if value == 1:
            raise ValueError("a group has two updates or more, which are compared with each other; 0 is none")
        return value

    @model_validator(mode="after")
    def _bounds(self) -> Training:
        if self.scalar_limit > self.largest_scalar:
            raise ValueError(
                f"scalar_limit is at most {self.largest_scalar} when scalar_bits is {self.scalar_bits}"
            )
        if self.is_first_order != (self.norm_limit > 0):
            raise ValueError("a first-order run has a norm_limit, and no other has one")
        if self.is_first_order and (self.basis != "published" or self.group):
            raise ValueError(
                "a first-order run has published bases, and no groups: an update has no direction"
            )
        if (self.basis == "published") != bool(self.bases):
            raise ValueError("bases is the digest of published bases; a run with random ones has none")
        if self.trains_a_head != bool(self.features):
            raise ValueError("features are those that a linear head sees; a run with another basis has none")
        if self.learning_rate * self.scalar_delta < LEAST_MOVE:
            raise ValueError(
                f"learning_rate times scalar_delta is at least {LEAST_MOVE:.2g}, or no update moves a weight"
            )
        if self.epochs > MAX_EPOCHS:
            raise ValueError(f"update_budget / epoch_updates is at most {MAX_EPOCHS}")
        return self

    @property
    def is_first_order(self) -> bool:
        """Whether an update is a gradient, with a scalar for every cell of the cores."""
        return self.estimator == "first-order"

    @property
    def largest_scalar(self) -> int:
        """Largest scalar that fits `scalar_bits`."""
        return (1 << (self.scalar_bits - 1)) - 1

    @property
    def batch_updates(self) -> int:
        """Number of updates that are measured together on one mini-batch: all updates of a group, or one."""
        return self.group or 1

    @property
    def points(self) -> int:
        """Number of points at which an update measures its mini-batch."""
        return 1 if self.group else 2

    @property
    def epochs(self) -> int:
        """Number of epochs that the budget spans."""
        return -(-self.update_budget // self.epoch_updates)

    @property
    def trains_a_head(self) -> bool:
        """Whether only a linear head is trained, along directions that follow from its features (SPEC
        R12)."""
        return self.basis == "features"

    def scales_and_means(self) -> list[tuple[int, int]]:
        """Return scale and mean of each feature of a `features` basis."""
        return list(FEATURE.iter_unpack(b64decode(self.features)))

    def epsilon_in(self, dtype: str) -> float:
        """Return the epsilon of a node that computes in this number format."""
        return {str(name): value for name, value in self.epsilons.items()}.get(dtype, self.epsilon)

    def with_random_bases(self) -> Training:
        """Return the same hyperparameters with random bases, which need no file. A step takes as long as with
        the run's own bases."""
        return self.model_copy(update={"basis": "random", "bases": "", "features": ""})

    def rate(self, epoch: int) -> float:
        """Return the learning rate that the schedule gives the updates of `epoch`, counted from 0."""
        progress = epoch / self.epochs
        factor = {
            "constant": 1.0,
            "linear": 1.0 - progress,
            "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
        }[self.schedule]
        return self.learning_rate * factor


def units_of(training: Training, target: Target) -> tuple[float, float]:
    """Return the values that an entry of 1 stands for in U and in V of a target (SPEC R7, R10, R12, U11)."""
    if training.is_first_order:
        return 2.0 ** -(3 + target.out_features.bit_length() // 2), 2.0 ** -(
            3 + target.in_features.bit_length() // 2
        )
    unit = 1.0 if training.basis == "random" else PUBLISHED_UNIT
    return unit, unit
