"""The sources of a run's rows: to train, to validate and to test on."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from sfnode.manifest.section import Hex32, Section

FILE_KINDS = (".tsv", ".csv", ".jsonl", ".parquet")
"""Ends of the names of files with rows, in upper or lower case."""

DataRole = Literal["train", "test", "validation"]
"""Purposes of a run's rows."""

MOST_ROWS = (1 << 64) - 1
"""The largest integer that the encoding behind the run id has (MessagePack)."""


def is_file(source: str) -> bool:
    """Return whether a source of rows is a file, rather than a data set that has a name for everybody."""
    return source.lower().endswith(FILE_KINDS) and not source.startswith(("hf:", "builtin:"))


class Data(Section):
    """The sources of rows.

    A file (.tsv .csv .jsonl .parquet), `hf:NAME[:CONFIG]:SPLIT` or `builtin:NAME:SPLIT`.
    `train` may be empty for a run on private data only: every trainer then brings its own with `--data`.
    Validation rows come from `validation`, or, if that is empty, are `validation_limit` rows of the training
    data, on which then nobody trains (SPEC R9); by them an organiser judges, and they are never tested on.
    `digests` name what is in sources that are files (SPEC B9): nodes get these from each other, and a source
    is no more than the file's name.
    """

    train: str = ""
    test: str = ""
    train_limit: int = Field(default=0, ge=0, le=MOST_ROWS)
    train_min_words: int = Field(default=0, ge=0, le=MOST_ROWS)
    test_limit: int = Field(default=0, ge=0, le=MOST_ROWS)
    validation: str = ""
    validation_limit: int = Field(default=0, ge=0, le=MOST_ROWS)
    digests: dict[DataRole, Hex32] = Field(default_factory=dict)

    def source(self, role: DataRole) -> str:
        """Return the source of these rows; an empty one if there is none."""
        found: str = getattr(self, role)
        return found

    def testing_as_training(self) -> Data:
        """Return data whose training rows are the test rows, with nothing beside them."""
        digests: dict[DataRole, str] = {"train": self.digests["test"]} if "test" in self.digests else {}
        return Data(train=self.test, train_limit=self.test_limit, digests=digests)

    @property
    def withheld(self) -> int:
        """Number of rows of the training data on which nobody trains, because they validate."""
        return 0 if self.validation else self.validation_limit

    @model_validator(mode="after")
    def _apart(self) -> Data:
        if self.validation and self.validation in (self.train, self.test):
            raise ValueError("validation rows are neither trained nor tested on: name a source of their own")
        if self.withheld and not self.train:
            raise ValueError("validation_limit needs training data to take the rows from, or validation")
        if self.withheld and self.train == self.test:
            raise ValueError("validation rows of the training data would be tested on: name other test data")
        if any(not is_file(self.source(role)) for role in self.digests):
            raise ValueError("digests are of sources that are files, .tsv, .csv, .jsonl or .parquet")
        return self
