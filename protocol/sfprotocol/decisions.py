"""Decisions of an organiser, the entries of an organised run's control feed (SPEC O2, O5).

The types of decisions, and their encoding. `run_state` applies decisions; `control_feed` checks who may sign
them. All numbers are integers; fractions are fixed-point numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import msgpack

from sfprotocol.errors import RemoteProtocolError
from sfprotocol.fields import (
    B8,
    B32,
    B64,
    BYTES,
    I64,
    U8,
    U16,
    U31,
    U32,
    Field,
    Values,
    array,
    binary,
    listed,
    one,
    pack,
    readable,
    require,
    row,
    squares_of,
    unpack,
)

RATE_ONE = 1 << 32
"""A rate of 1, in units of 2^-32 (SPEC O8)."""

UNIT_ONE = 1 << 16
"""Value of `RateFrom.unit` with which a scalar of 1 stands for scalar_delta: units are stored as multiples of
2^-16 scalar_delta (SPEC U11)."""

FACTOR_ONE = 1 << 12
"""A factor of 1, in units of 2^-12 (SPEC O8)."""

LEAST_NORM = 8
"""Divisor of the limit of the norm of first-order updates. An update counts only if its norm is at least an
eighth of the limit. A shorter update would change the model little, but use up as much of the update budget
as a longer one."""

INCARNATIONS = 64
"""Maximum number of feeds of one member (SPEC O6). The number of a feed is INCARNATIONS times the number of
its member, plus the feed's incarnation."""

TAG_BYTES = 8
"""Size, in bytes, of the tag that identifies a feed's history in a Close. After the Close, a dishonest member
could search for another history of its feed with the same tag. On one processor, the search takes minutes for
a tag of 4 bytes, and thousands of years for 8 bytes (SPEC O7)."""

MAX_DECISION = 192 * 1024
"""Maximum size of one decision, in bytes. A decision of this size fits a message. A Close of 10,000 feeds is
smaller."""

MAX_MOVES = 16_384
"""Maximum number of entries of a list in a decision. Bounds the memory that the decoder allocates for a list
before it has read the entries."""

MAX_STAND_INS = 15
"""Maximum number of stand-ins of a run. With 15 stand-ins, a decision needs eight of them, so that seven may
be away."""

MAX_TEXT = 1000
"""Maximum size of an announcement, in bytes; enough for a paragraph."""


class Move(NamedTuple):
    """The steps of one feed that one Close lists."""

    feed: int
    """The number of the feed (see INCARNATIONS)."""
    steps: int
    """Number of listed steps. They begin with the first step that is not listed by an earlier Close."""
    tag: bytes
    """The first 8 bytes of BLAKE2b-256(salt | chain hash after the last listed step), which identify the
    history. The salt is drawn for the Close, so that nobody can prepare two histories with one tag."""
    zeros: int = 0
    """Number of listed steps that cannot change the weights, and so do not count: their scalar is 0, or their
    norm is out of bounds (`RateFrom.moves`)."""

    @property
    def moving(self) -> int:
        """Number of listed steps that may count."""
        return self.steps - self.zeros


class Recount(NamedTuple):
    """Steps of one feed in one Close, which an earlier Seal has skipped and a later Seal counts."""

    feed: int
    epoch: int
    """The epoch of the Close that lists these steps."""


class RateFrom(NamedTuple):
    """The rate of updates with the label `epoch` or a later label. In a first-order run, also the unit of the
    updates' scalars and the limit of their norm."""

    epoch: int
    rate: int
    """Rate in units of 2^-32."""
    unit: int = UNIT_ONE
    """Value of a scalar of 1, in units of 2^-16 of scalar_delta."""
    limit: int = 0
    """Maximum norm of an update (the root of the sum of its squared scalars); 0 in a zeroth-order run, where
    norms have no limit."""

    def moves(self, values: Values) -> bool:
        """Return whether an update with this rate changes the weights (SPEC U11). An update with the scalar 0
        does not. In a first-order run, neither does an update with a norm above the limit or below an eighth
        of the limit."""
        if isinstance(values, int):
            return values != 0
        squares = squares_of(values)
        return squares <= self.limit**2 <= LEAST_NORM**2 * squares


class Part(NamedTuple):
    """The measured effect of one feed's updates in one Close on the validation loss."""

    feed: int
    updates: int
    """Number of listed updates that were measured."""
    worth: int
    """Decrease of the validation loss by the measured updates, if their factor is 1, in units of 10^-9
    nats."""
    score: int
    """Measure of the updates' quality: by how many standard deviations they are better than random ones, in
    units of 10^-3 (SPEC O16)."""


class StandIn(NamedTuple):
    """A member that may replace the organiser, with the key that it has made for its role as a stand-in."""

    member: int
    key: bytes


class Ballot(NamedTuple):
    """The signature of one stand-in over `control_feed.election_message`. `stand_in` is the index of the
    stand-in in the last StandIns decision."""

    stand_in: int
    signature: bytes


class Extension(NamedTuple):
    """An additional field of a decision, for later versions of sfnode. The run's state may depend on fields
    of even `kind`. A node that meets an even kind that it does not know cannot compute the state."""

    kind: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Close the open epoch: list the updates that its Seal will judge, and open the next epoch."""

    epoch: int
    salt: bytes
    """8 random bytes."""
    moves: tuple[Move, ...]


@dataclass(frozen=True, slots=True)
class Seal:
    """Judge the steps that the Close of `epoch` lists: all count except those of skipped feeds."""

    epoch: int
    skipped: tuple[int, ...]
    recounted: tuple[Recount, ...]
    digest: bytes
    """The digest of all steps that the Close of `epoch` and earlier Closes list (SPEC O10); 32 bytes."""
    factor: int
    """Factor of all steps that this Seal counts, in units of 2^-12."""
    rates: tuple[RateFrom, ...]
    """Rates of epochs that are not open yet."""


@dataclass(frozen=True, slots=True)
class Amend:
    """End a feed before the steps that the Close of `epoch` lists, because these steps and all later ones are
    lost.

    A feed can end only where a Close has recorded a tag of its history. Elsewhere, nodes could not tell two
    histories of the feed apart.
    """

    feed: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Admit:
    """Make an origin a member, so that its updates may count."""

    origin: bytes
    quota: int
    """Maximum number of updates of the origin with one label; 0 for a stranger, for whom nobody vouches (SPEC
    O20)."""
    invitation: int
    """1 + number of the invitation with which the origin comes; 0 without an invitation."""


@dataclass(frozen=True, slots=True)
class Invite:
    """Publish the key of an invitation. Newcomers whose origin this key has signed may be admitted."""

    key: bytes
    uses: int


@dataclass(frozen=True, slots=True)
class Revoke:
    """Exclude the updates of a member that have the label `epoch` or a later label, unless Closes list
    them."""

    member: int
    epoch: int


@dataclass(frozen=True, slots=True)
class RevokeInvitation:
    """Revoke all members admitted by an invitation, and the invitation itself."""

    invitation: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Void:
    """Exclude for good the steps of these `members` that the Closes of epochs `first` to `last` list. If
    `members` is empty, exclude the steps of all members."""

    first: int
    last: int
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Budget:
    """Change the number of counted updates at which the run is complete."""

    updates: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Declare the run complete, so that nobody makes further updates."""


@dataclass(frozen=True, slots=True)
class Bases:
    """Set the published bases of a subspace. Later subspaces without bases of their own use them, too."""

    subspace: int
    digest: bytes
    """The digest of the file with the bases (SPEC R10); 32 bytes."""


@dataclass(frozen=True, slots=True)
class StandIns:
    """Name the stand-ins, of whom the organiser is one. If the organiser falls silent, more than half of the
    stand-ins elect another organiser. If `keys` is empty, the run has no stand-ins any more (SPEC O21)."""

    keys: tuple[StandIn, ...]
    admission: int = 0
    """Newcomers whom an elected stand-in admits without asking a person. 0: those with an invitation. 1:
    those with an invitation; requests of others wait for a person to decide. 2: those with an invitation or a
    proof of work."""


@dataclass(frozen=True, slots=True)
class Elected:
    """Begin a term in which this key signs: more than half of the stand-ins have elected it (SPEC O23)."""

    key: bytes
    ballots: tuple[Ballot, ...]


@dataclass(frozen=True, slots=True)
class Announce:
    """Announce a text to all nodes; has no effect on the run's state."""

    text: str


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Report an evaluation of the model after the Seal of `epoch`, on the validation rows; has no effect on
    the run's state."""

    epoch: int
    metric: str
    value: int
    """The value of the metric, in units of 10^-6. The confidence interval (`low`, `high`) and the `loss` have
    the same unit."""
    low: int
    high: int
    loss: int
    rows: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Report the digests of what counts up to a sealed epoch. Every node can recompute these digests. A
    Checkpoint does not change which updates count (SPEC O14)."""

    epoch: int
    feeds: bytes
    """The feeds digest (`checkpoints.feeds_digest`)."""
    cores: bytes
    """The core digest (SPEC D5) of the updates that count."""


@dataclass(frozen=True, slots=True)
class Worth:
    """Report the worth of each feed's updates in an epoch, as measured before the Seal of the epoch; has no
    effect on the run's state (SPEC O16)."""

    epoch: int
    rows: int
    """Number of validation rows on which the worth was measured."""
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Validators:
    """Name members that measure for the organiser. Only sfnode before version 0.3 made this decision; it has
    no effect any more (SPEC O18)."""

    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Oversized:
    """Report the feeds whose listed scalars in the Close of `epoch` are so large that the organiser does not
    count them for the time being. The report itself has no effect on the run's state."""

    epoch: int
    feeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Unknown:
    """A decision of a kind that this version does not know."""

    kind: int


OfWhatCounts = Close | Seal | Amend | Admit | Revoke | RevokeInvitation | Void | Budget | Finish | Bases
OfOthers = Invite | StandIns | Elected | Announce | Evaluated | Checkpoint | Worth | Validators | Oversized
Decision = OfWhatCounts | OfOthers | Unknown


class Recorded(NamedTuple):
    """A decision with its extensions."""

    decision: Decision
    extensions: tuple[Extension, ...] = ()

    @property
    def unsupported(self) -> bool:
        """Whether the state of the run may depend on a kind of decision or extension that this version does
        not know."""
        critical = isinstance(self.decision, Unknown) and self.decision.kind % 2 == 0
        return critical or any(extension.kind % 2 == 0 for extension in self.extensions)


# -- encoding ----------------------------------------------------------------------------------------


def _text(most: int) -> Field:
    return one(
        lambda value: isinstance(value, str) and readable(value) and len(value.encode()) <= most,
        f"not a text of {most} bytes at most that can be seen",
    )


def _read_move(values: list[Any], at: int) -> Move:
    """Return a move. Its fourth field, the number of zeros, is left out of the array if it is 0."""
    value = values[at]
    named = isinstance(value, list) and len(value) == 4
    move: Move = (_MOVE_WITH_ZEROS if named else _MOVE).read(values, at)
    require(not named or 0 < move.zeros <= move.steps, "O2", "a number of zeros out of range")
    return move


def _read_rate(values: list[Any], at: int) -> RateFrom:
    """Return a rate. In a first-order run, the array has two more fields, unit and limit, which must not be
    0."""
    value = values[at]
    whole = isinstance(value, list) and len(value) == 4
    rate: RateFrom = (_RATE_AND_UNIT if whole else _RATE).read(values, at)
    require(not whole or (rate.limit > 0 and rate.unit > 0), "O2", "a unit or a limit of 0")
    return rate


def _write_rate(rate: RateFrom) -> list[Any]:
    return [list(rate if rate.limit else rate[:2])]


def _ascending(item: Field, name: Callable[[Any], Any]) -> Field:
    return listed(item, MAX_MOVES, name)


_NUMBERS = _ascending(U31, int)
_MOVE = array(row(Move, U31, U32, binary(TAG_BYTES)))
_MOVE_WITH_ZEROS = array(row(Move, U31, U32, binary(TAG_BYTES), U32))
_MOVES = _ascending(
    Field(1, _read_move, lambda move: [list(move if move.zeros else move[:3])]), attrgetter("feed")
)
_RATE = array(row(RateFrom, U32, U32))
_RATE_AND_UNIT = array(row(RateFrom, U32, U32, U32, U32))
_RECOUNTS = _ascending(array(row(Recount, U31, U32)), tuple)
_RATES = _ascending(Field(1, _read_rate, _write_rate), attrgetter("epoch"))
_PARTS = _ascending(array(row(Part, U31, U32, I64, I64)), attrgetter("feed"))
_STAND_INS = listed(array(row(StandIn, U31, B32)), MAX_STAND_INS, attrgetter("member"))
_BALLOTS = listed(array(row(Ballot, U8, B64)), MAX_STAND_INS, attrgetter("stand_in"))
_EXTENSIONS = _ascending(array(row(Extension, U16, BYTES)), attrgetter("kind"))

_KINDS: dict[int, tuple[type, tuple[Field, ...]]] = {
    0: (Close, (U32, B8, _MOVES)),
    2: (Seal, (U32, _NUMBERS, _RECOUNTS, B32, U16, _RATES)),
    4: (Amend, (U31, U32)),
    6: (Admit, (B32, U32, U31)),
    8: (Invite, (B32, U32)),
    10: (Revoke, (U31, U32)),
    12: (RevokeInvitation, (U31, U32)),
    14: (Void, (U32, U32, _NUMBERS)),
    16: (Budget, (U32,)),
    18: (Finish, ()),
    20: (Bases, (U32, B32)),
    22: (StandIns, (_STAND_INS, U8)),
    24: (Elected, (B32, _BALLOTS)),
    1: (Announce, (_text(MAX_TEXT),)),
    3: (Evaluated, (U32, _text(64), I64, I64, I64, I64, U32)),
    5: (Checkpoint, (U32, B32, B32)),
    7: (Worth, (U32, U32, _PARTS)),
    9: (Validators, (_NUMBERS,)),
    11: (Oversized, (U32, _NUMBERS)),
}
"""The type and the fields of each kind of decision, keyed by kind. Even kinds change the state of a run, odd
kinds do not."""

_KIND_OF = {decision: kind for kind, (decision, _) in _KINDS.items()}
_FIELDS = {kind: row(decision, *fields) for kind, (decision, fields) in _KINDS.items()}
_BOUNDS = {"max_array_len": MAX_MOVES, "max_map_len": 0, "max_ext_len": 0}


def encode(decision: Decision, extensions: tuple[Extension, ...] = ()) -> bytes:
    """Return the only valid encoding of a decision (SPEC O2). Raises RemoteProtocolError if a field is out of
    range."""
    kind = _KIND_OF.get(type(decision))
    if kind is None:
        raise RemoteProtocolError("O2", "a decision that cannot be written")
    data = _pack([kind, *_FIELDS[kind].write(decision), *_EXTENSIONS.write(extensions)])
    decode(data)
    return data


def decode(data: bytes) -> Recorded:
    """Return the decision that `data` encodes. Raises RemoteProtocolError (SPEC O2) if `data` is not the
    encoding of a decision."""
    try:
        return _decode(data)
    except RemoteProtocolError as error:
        raise RemoteProtocolError("O2", error.reason) from None


def _decode(data: bytes) -> Recorded:
    require(len(data) <= MAX_DECISION, "O2", "a decision that is too long")
    found = _unpack(data)
    require(isinstance(found, list) and len(found) >= 1, "O2", "not an array that begins with a kind")
    kind = U16.read(found, 0)
    require(_pack(found) == data, "O2", "not in canonical form")
    if kind not in _FIELDS:
        return Recorded(Unknown(kind))
    fields = _FIELDS[kind]
    require(len(found) == fields.width + 2, "O2", "wrong number of fields")
    return Recorded(fields.read(found, 1), _EXTENSIONS.read(found, fields.width + 1))


def read(record: bytes) -> Recorded:
    """Return the decision that a signed record encodes. If the record does not encode a valid decision,
    return one that has no effect (SPEC O2)."""
    try:
        return decode(record)
    except RemoteProtocolError:
        return Recorded(Unknown(1))


def _pack(value: Any) -> bytes:
    try:
        return pack(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise RemoteProtocolError("O2", f"cannot be written: {error}") from None


def _unpack(data: bytes) -> Any:
    """Return the one value in `data`. The unpacker allocates an array as soon as it is announced, and 3 bytes
    can announce 128 KiB. So a first pass, which allocates nothing, checks that all announced elements are
    there."""
    unpacker = msgpack.Unpacker(max_buffer_size=MAX_DECISION, **_BOUNDS)
    unpacker.feed(data)
    try:
        unpacker.skip()
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise RemoteProtocolError("O2", f"not MessagePack: {error}") from None
    require(unpacker.tell() == len(data), "O2", "more than one value")
    return unpack(data, _BOUNDS, "O2")
