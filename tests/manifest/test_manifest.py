"""Tests of the manifest: what it refuses, and that both of its forms read back as written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from sfnode.errors import Code, UserError
from sfnode.manifest import MAX_CORE_BYTES, MAX_CORES_BYTES, MAX_DESCRIPTION, Manifest
from sfnode.manifest.sections import sorted_keys
from sfprotocol.messages import PROTOCOL_VERSION
from tests.manifest.fields import FIELDS, PARENT, REWARD, changed, organised
from tests.manifest.test_first_order import fields as first_order
from tests.refusals import fails_with, refused

NUMBERS = {"kind": "json", "satisfies": {"enum": [1, 10**30], "maximum": 2}}
WHOLE = {"weight": 1, "verifier": {"kind": "boxed", "then": NUMBERS}}
WRITTEN = {"verifier": {"kind": "sum", "terms": [WHOLE]}, "temperature": 1, "stop": ["\r\n", '"""\n']}
RUNS = {
    **{repr(end): changed("task", template="{text}" + end) for end in ("", "\nIt was", "\r\nIt was")},
    "rewards": FIELDS | {"task": REWARD | WRITTEN},
    "first-order": first_order("a:3x10", "b:3x5"),
    "version 1": FIELDS | {"protocol": 1},
}


@pytest.mark.parametrize("fields", RUNS.values(), ids=RUNS)
def test_both_forms_of_a_manifest_name_the_same_run(tmp_path: Path, fields: dict[str, Any]) -> None:
    manifest = Manifest.model_validate(fields)
    (tmp_path / "run.toml").write_text(manifest.to_toml())
    assert Manifest.from_toml(tmp_path / "run.toml").run_id == manifest.run_id
    assert Manifest.from_canonical(manifest.canonical(), "a peer") == manifest


def test_bytes_that_are_not_canonical_are_refused() -> None:
    encoded = Manifest.model_validate(FIELDS).canonical()
    for bad in (encoded + b"\x00", encoded[:-1], b"\xc0", b""):
        with fails_with(Code.BAD_MANIFEST):
            Manifest.from_canonical(bad, "a peer")


def test_a_newer_protocol_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"protocol = {PROTOCOL_VERSION + 1}\nsomething_new = true\n")
    with refused(Code.NEWER_PROTOCOL, f"speaks protocol {PROTOCOL_VERSION + 1}"):
        Manifest.from_toml(path)


def test_a_new_run_is_of_version_3_and_open() -> None:
    manifest = Manifest.model_validate(FIELDS)
    assert (manifest.protocol, manifest.admission) == (3, "open")
    assert (manifest.parameters().organised, manifest.parameters().rate) == (None, 0)


def test_an_extension_that_may_change_the_state_refuses_the_run_and_another_does_not(tmp_path: Path) -> None:
    manifest = Manifest.model_validate(FIELDS | {"extensions": {"7": "00ff", "301": ""}})
    assert Manifest.from_canonical(manifest.canonical(), "a peer") == manifest
    critical = Manifest.model_validate(FIELDS | {"extensions": {"7": "", "8": ""}})
    (tmp_path / "run.toml").write_text(critical.to_toml())
    for read in (
        lambda: Manifest.from_canonical(critical.canonical(), "a peer"),
        lambda: Manifest.from_toml(tmp_path / "run.toml"),
    ):
        with refused(Code.NEWER_PROTOCOL, "kind 8"):
            read()


@pytest.mark.parametrize(
    ("content", "why"),
    [(None, "Is a directory"), (b"\xcb\x00", "it is no text (UTF-8)"), (b"no = TOML", "Invalid value")],
)
def test_a_file_that_is_no_manifest_is_told_without_the_words_of_programmers(
    tmp_path: Path, content: bytes | None, why: str
) -> None:
    file = tmp_path / "run.toml"
    file.mkdir() if content is None else file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        Manifest.from_toml(file)
    assert caught.value.what.startswith(f"cannot read the run manifest {file}: {why}")
    assert caught.value.code is Code.BAD_MANIFEST


def test_a_table_in_the_place_of_a_manifest_is_answered_with_how_to_make_a_run_of_it(tmp_path: Path) -> None:
    file = tmp_path / "tickets.csv"
    file.write_text("text,label\nfine,1\n")
    with pytest.raises(UserError) as caught:
        Manifest.from_toml(file)
    assert caught.value.fix == f"Make a run of it: sfnode init {file}"


@pytest.mark.parametrize("extension", [{"07": ""}, {"-1": ""}, {"x": ""}, {"1": "0"}, {"1": "FF"}])
def test_an_extension_has_one_form(extension: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="extensions"):
        Manifest.model_validate(FIELDS | {"extensions": extension})


def test_a_manifest_of_version_1_is_written_without_the_keys_of_version_2() -> None:
    manifest = Manifest.model_validate(FIELDS | {"protocol": 1})
    assert not {"organised", "extensions"} & set(manifest.fields())
    assert "validation" not in manifest.to_toml()


@pytest.mark.parametrize(
    "fields",
    [
        organised(),
        {"extensions": {"1": ""}},
        {"data": {"validation": "rows.tsv"}},
        {"data": {"train": "rows.tsv", "validation_limit": 1}},
        {"training": {"basis": "published", "bases": "ab" * 32}},
        {"training": {"group": 2}},
        {"data": {"train": "rows.tsv", "digests": {"train": "ab" * 32}}},
        {"model": FIELDS["model"] | {"parent": PARENT}},
        {"description": "Reviews of films"},
        {"task": REWARD},
    ],
)
def test_a_manifest_of_version_1_has_nothing_of_version_2(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="version 1"):
        Manifest.model_validate(FIELDS | fields | {"protocol": 1})
    encoded = msgpack.packb(FIELDS | fields | {"protocol": 1})
    with pytest.raises(UserError):
        Manifest.from_canonical(encoded, "a peer")


def test_nobody_takes_part_in_a_run_of_version_1_and_is_told_what_still_works() -> None:
    assert Manifest.model_validate(FIELDS).current("run.toml")
    with pytest.raises(UserError, match="no protection") as caught:
        Manifest.model_validate(FIELDS | {"protocol": 1}).current("run.toml")
    assert caught.value.code is Code.OLDER_PROTOCOL
    assert "sfnode init" in caught.value.fix
    assert "sfnode export" in caught.value.fix


OMITTED: dict[str, tuple[str, dict[str, Any]]] = {
    "description": ("", FIELDS | {"description": "Reviews of films, für alle."}),
    "digests": ("data", changed("data", train="a.tsv", test="b.jsonl", digests={"train": "ab" * 32})),
    "parent": ("model", changed("model", parent=PARENT)),
    "group": ("training", changed("training", group=8)),
    "decay": ("training", organised(training={"decay": 0.99})),
    "epsilons": ("training", organised(training={"epsilons": {"bfloat16": 8e-3}})),
    "bases": ("training", changed("training", basis="published", bases="ab" * 32)),
}


@pytest.mark.parametrize("key", OMITTED)
def test_a_key_is_said_where_it_is_given_and_other_runs_keep_their_bytes(key: str, tmp_path: Path) -> None:
    table, fields = OMITTED[key]
    plain = Manifest.model_validate(organised() if "organised" in fields else FIELDS).fields()
    said = Manifest.model_validate(fields)
    assert key not in (plain[table] if table else plain)
    assert key in (said.fields()[table] if table else said.fields())
    (tmp_path / "run.toml").write_text(said.to_toml())
    assert Manifest.from_toml(tmp_path / "run.toml") == said
    assert Manifest.from_canonical(said.canonical(), "a peer") == said


@pytest.mark.parametrize(
    "words", ["a\nb", "\x1b[31mred", "right \u202eto left", " space", "x" * (MAX_DESCRIPTION + 1), "\ud800"]
)
def test_a_description_is_one_readable_paragraph(words: str) -> None:
    with pytest.raises(ValueError, match="description"):
        Manifest.model_validate(FIELDS | {"description": words})


# -- what a run takes ----------------------------------------------------------------------------------


def sized(run: dict[str, Any], targets: int, **training: int) -> dict[str, Any]:
    names = [f"layers.{number}:1024x1024" for number in range(targets)]
    return run | {"model": FIELDS["model"] | {"targets": names}, "training": training}


@pytest.mark.parametrize(("targets", "rank"), [(4096, 1024), (4096, 128), (17, 1024), (1025, 128)])
@pytest.mark.parametrize("run", [FIELDS, organised()], ids=["open", "organised"])
def test_a_core_that_takes_too_much_is_refused_with_the_numbers(
    run: dict[str, Any], targets: int, rank: int, tmp_path: Path
) -> None:
    """The bound is SPEC M9's."""
    told = rf"{targets} targets at rank {rank} takes .*, and 134 MB is the most"
    with pytest.raises(ValueError, match=told):
        Manifest.model_validate(sized(run, targets, rank=rank))
    encoded = msgpack.packb(sorted_keys(sized(run, targets, rank=rank)))
    with pytest.raises(UserError, match=told) as caught:
        Manifest.from_canonical(encoded, "a peer")
    assert caught.value.code is Code.BAD_MANIFEST


@pytest.mark.parametrize(("targets", "rank"), [(560, 32), (600, 128), (4096, 64), (16, 1024)])
def test_the_largest_models_are_within_the_bound(targets: int, rank: int) -> None:
    """A model of 70B parameters has 80 layers of 7 matrices."""
    assert Manifest.model_validate(sized(FIELDS, targets, rank=rank)).core_bytes <= MAX_CORE_BYTES


def test_the_epochs_of_an_open_run_take_no_more_than_the_bound_together() -> None:
    epochs = MAX_CORES_BYTES // (8 * 560 * 32**2)
    Manifest.model_validate(sized(FIELDS, 560, epoch_updates=1024, update_budget=1024 * epochs))
    told = rf"560 targets at rank 32 takes 4.6 MB for each of {epochs + 1} epochs, and 4.3 GB is the most"
    with pytest.raises(ValueError, match=told):
        Manifest.model_validate(sized(FIELDS, 560, epoch_updates=1024, update_budget=1024 * epochs + 1))


def test_an_organised_run_goes_on_in_its_last_subspace() -> None:
    """It has as many epochs as its organiser closes, so the number of subspaces is bounded."""
    fields = sized(organised(subspace_epochs=3), 560, epoch_updates=1, update_budget=60_000)
    run = Manifest.model_validate(fields).parameters()
    assert (run.last_subspace + 1) * 8 * 560 * 32**2 <= MAX_CORES_BYTES
    last = 3 * run.last_subspace
    assert [run.subspace_of(epoch) for epoch in (2, 3, last - 1, last, last + 3, 10**9)] == [
        0, 1, run.last_subspace - 1, run.last_subspace, run.last_subspace, run.last_subspace,
    ]  # fmt: skip
