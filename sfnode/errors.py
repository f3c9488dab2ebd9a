"""Numbered errors (SF010 to SF092) that a user sees: what happened and why, and what to do about it.

Every failure that a user, a peer or a full disk can cause is reported as one of these errors, never as a
traceback. The numbers are stable; docs/errors.md describes each.
"""

from __future__ import annotations

from enum import IntEnum

from sfnode.printable import paragraph


class Code(IntEnum):
    """The numbers of the errors: 1x command line, 2x model, 3x data, 4x disk, 5x network, 6x other nodes, 7x
    organised runs, 8x experiments, loggers, published bases, archives, parents, pages, rewards; 9x rewards,
    flat losses, backups of keys."""

    BAD_OPTION = 10
    BAD_MANIFEST = 11
    NEWER_PROTOCOL = 12
    WRONG_RUN = 13
    BAD_LINK = 14
    LIMIT_UNAVAILABLE = 15
    OLDER_PROTOCOL = 16
    UPDATE_TOO_LARGE = 17
    RUN_IS_OPEN = 18
    MODEL_NOT_FOUND = 20
    MODEL_DIGEST = 21
    MODEL_UNSUPPORTED = 22
    MODEL_UNSAFE = 23
    DEVICE = 24
    OUT_OF_MEMORY = 25
    LOSS_NOT_FINITE = 26
    MODEL_TOO_LARGE = 27
    DATA_NOT_FOUND = 30
    DATA_MALFORMED = 31
    DATA_NEEDED = 32
    DATA_TOO_LARGE = 33
    DATA_DIFFERS = 34
    DATA_NOT_NAMED = 35
    DATA_DIR_IN_USE = 40
    DISK_FULL = 41
    LOG_CORRUPT = 42
    DATA_DIR_UNUSABLE = 43
    KEY_NOT_FOUND = 44
    WRONG_KEY = 45
    WRONG_PASSPHRASE = 46
    KEY_EXPOSED = 47
    KEY_IN_USE = 48
    CHECKPOINT_UNUSABLE = 49
    PEERS_UNREACHABLE = 50
    PORT_IN_USE = 51
    BAD_ADDRESS = 52
    NETWORK_DAEMON = 53
    NO_ADDRESS = 54
    CONTACTS_UNUSABLE = 55
    CLOCK_DIFFERS = 56
    NODE_NOT_ANSWERING = 57
    NODE_NOT_RUNNING = 60
    SWARM_FAILED = 61
    DIGESTS_DIFFER = 62
    PAUSED = 63
    SEAL_DIFFERS = 64
    ORGANISER_NEEDED = 65
    DECISION_REFUSED = 66
    SUCCESSION_REFUSED = 67
    CHECKPOINT_DIFFERS = 68
    HISTORY_GONE = 69
    RUN_GETS_WORSE = 70
    RUN_NO_BETTER = 71
    RUN_FROZEN = 72
    ORGANISER_SILENT = 73
    UPDATES_LACKING = 74
    RESULTS_UNUSABLE = 75
    EXTRA_MISSING = 78
    LOGGER_UNUSABLE = 79
    BASES_MISSING = 81
    BASES_UNUSABLE = 82
    ARCHIVE_UNUSABLE = 83
    PARENT_DIFFERS = 84
    WORK_SKIPPED = 86
    BAD_RUN_FILE = 87
    REWARDS_ALIKE = 89
    VERIFIER_NOT_ALLOWED = 90
    LOSS_FLAT = 91
    BACKUP_UNUSABLE = 92


NO_ANSWER = (Code.NODE_NOT_RUNNING, Code.NODE_NOT_ANSWERING)
"""Numbers of the errors for a node that does not answer."""


class UserError(Exception):
    """An error that the user can act on.

    `code` is its number, `what` the event and its cause, and `fix` the advice. `what` and `fix` may quote
    other people, so invisible characters in them are escaped.
    """

    def __init__(self, code: Code, what: str, fix: str) -> None:
        self.code = code
        self.what = paragraph(what)
        self.fix = paragraph(fix)
        super().__init__(self.what)

    def __str__(self) -> str:
        return f"SF{self.code:03d}: {self.what}\n  {self.fix}"
