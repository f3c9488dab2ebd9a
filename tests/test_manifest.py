"""The run manifest: what it refuses, and that it survives its two forms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest
import tomli_w

from sfnode.errors import Code, UserError
from sfnode.manifest import MAX_ANSWER_TOKENS, MAX_DESCRIPTION, MAX_GROUP, MAX_QUOTA, Manifest, Task, Training
from sfprotocol import PROTOCOL_VERSION
from sfprotocol.messages import Authority

ORGANISER, DEPUTY, OTHER = (bytes([number]) * 31 + b"\x05" for number in (2, 3, 4))
FIELDS: dict[str, Any] = {
    "model": {"source": "builtin:tiny", "digest": "0" * 64, "targets": ["layers.0.fc1:64x32"]},
    "task": {"kind": "text", "template": "{text}"},
    "data": {},
}
PARENT = {"run_id": "12" * 32, "epoch": 7, "digest": "34" * 32}


def changed(section: str, **fields: Any) -> dict[str, Any]:
    return {**FIELDS, section: {**FIELDS.get(section, {}), **fields}}


@pytest.mark.parametrize("template", ["{text}", "{text}\nIt was", "{text}\r\nIt was"])
def test_both_forms_of_a_manifest_name_the_same_run(tmp_path: Path, template: str) -> None:
    manifest = Manifest.model_validate(changed("task", template=template))
    (tmp_path / "run.toml").write_text(manifest.to_toml())
    assert Manifest.from_toml(tmp_path / "run.toml").run_id == manifest.run_id
    assert Manifest.from_canonical(manifest.canonical(), "a peer") == manifest


@pytest.mark.parametrize(
    "target", ["fc1", "fc1:64", "fc1:64x", "fc1: 64x32", "fc1:+6x3", "fc1:1_0x3", ":4x4", "a:0x4"]
)
def test_a_target_that_is_not_name_out_in_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match=r"target|form|greater"):
        Manifest.model_validate(changed("model", targets=[target]))


@pytest.mark.parametrize(
    "fields",
    [
        {"rank": 24},
        {"scalar_delta": float("inf")},
        {"scalar_delta": float("nan")},
        {"scalar_bits": 8, "scalar_limit": 128},
        {"epoch_updates": 1, "update_budget": 65_537},
        {"learning_rte": 1e-3},
    ],
)
def test_numbers_that_no_run_can_have_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="training"):
        Manifest.model_validate(changed("training", **fields))


def test_bytes_that_are_not_canonical_are_refused() -> None:
    encoded = Manifest.model_validate(FIELDS).canonical()
    for bad in (encoded + b"\x00", encoded[:-1], b"\xc0", b""):
        with pytest.raises(UserError) as caught:
            Manifest.from_canonical(bad, "a peer")
        assert caught.value.code is Code.BAD_MANIFEST


def test_classes_have_the_same_numbers_on_the_node_that_wrote_the_manifest_and_on_those_that_got_it() -> None:
    """A verbalizer's order numbers the outputs of a classification head, and canonical bytes sort it."""
    task = Task(
        kind="sequence-classification",
        template="{sentence}",
        verbalizer={"b": "no", "é": "so-so", "a": "yes"},
    )
    assert list(task.verbalizer) == ["a", "b", "é"]


def test_a_newer_protocol_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(f"protocol = {PROTOCOL_VERSION + 1}\nsomething_new = true\n")
    with pytest.raises(UserError, match=f"speaks protocol {PROTOCOL_VERSION + 1}") as caught:
        Manifest.from_toml(path)
    assert caught.value.code is Code.NEWER_PROTOCOL


def test_schedules_start_at_the_learning_rate_and_fall() -> None:
    for schedule in ("constant", "linear", "cosine"):
        training = Manifest.model_validate(
            changed("training", schedule=schedule, epoch_updates=10, update_budget=100)
        ).training
        rates = [training.rate(epoch) for epoch in range(training.epochs)]
        assert rates[0] == training.learning_rate
        assert rates == sorted(rates, reverse=True)
        assert rates[-1] > 0


# -- version 2 ---------------------------------------------------------------------------------------


def organised(
    *, data: dict[str, Any] | None = None, training: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    """The fields of an organised run with one deputy."""
    said = {"organiser": ORGANISER.hex(), "deputies": [DEPUTY.hex()], "quota": 100} | fields
    return FIELDS | {
        "admission": "organised",
        "organised": said,
        "data": data or {},
        "training": training or {},
    }


def version_1() -> dict[str, Any]:
    fields = Manifest.model_validate(FIELDS | {"protocol": 1}).fields()
    assert not {"organised", "extensions"} & set(fields)
    return fields


def test_a_new_run_is_of_version_2_and_open() -> None:
    manifest = Manifest.model_validate(FIELDS)
    assert (manifest.protocol, manifest.admission) == (2, "open")
    assert (manifest.parameters().organised, manifest.parameters().rate) == (None, 0)


def test_an_organised_run_tells_the_protocol_whom_it_trusts_and_the_first_rate() -> None:
    fields = organised(deputies=[DEPUTY.hex(), OTHER.hex()], votes=2, training={"learning_rate": 1e-3})
    manifest = Manifest.model_validate(fields)
    run = manifest.parameters()
    assert run.organised == Authority(manifest.run_id, ORGANISER, (DEPUTY, OTHER), 2)
    assert run.rate == 4_294_967


@pytest.mark.parametrize(("units", "rate"), [(1.5, 2), (2.5, 2), (2.5000001, 3), (0.51, 1)])
def test_the_rate_is_rounded_to_the_nearest_unit_and_halves_to_even(units: float, rate: int) -> None:
    manifest = Manifest.model_validate(organised(training={"learning_rate": units * 2**-32}))
    assert manifest.parameters().rate == rate


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"deputies": [DEPUTY.hex(), OTHER.hex()], "votes": 1}, "more than half"),
        ({"votes": 2}, "more than half"),
        ({"votes": 0}, "greater"),
        ({"deputies": [DEPUTY.hex()] * 2, "votes": 2}, "different keys"),
        ({"deputies": [ORGANISER.hex()]}, "different keys"),
        ({"deputies": ["AB" * 32]}, "pattern"),
        ({"organiser": "00" * 32}, "weak"),
        ({"organiser": "ff" * 32}, "weak"),
        ({"deputies": ["01" + "00" * 31]}, "weak"),
        ({"organiser": ""}, "open run"),
        ({"quota": 0}, "quota"),
        ({"quota": MAX_QUOTA + 1}, "less than"),
        ({"subspace_epochs": 0}, "greater"),
        ({"training": {"schedule": "cosine"}}, "schedule"),
        ({"training": {"learning_rate": 1e-10}}, "learning_rate"),
        ({"training": {"learning_rate": 1.0}}, "learning_rate"),
    ],
    ids=str,
)
def test_an_organised_run_that_cannot_be_trusted_is_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Manifest.model_validate(organised(**fields))


def test_a_run_without_deputies_may_be_organised() -> None:
    run = Manifest.model_validate(organised(deputies=[])).parameters()
    assert run.organised is not None
    assert (run.organised.deputies, run.organised.votes) == ((), 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"admission": "organised"},
        organised() | {"admission": "open"},
        {"organised": {"quota": 7}},
        {"organised": {"deputies": [DEPUTY.hex()]}},
        {"organised": {"subspace_epochs": 2}},
    ],
)
def test_a_run_is_either_open_or_organised(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="organise"):
        Manifest.model_validate(FIELDS | fields)


@pytest.mark.parametrize(
    "data",
    [
        {"train": "a.tsv", "validation": "a.tsv"},
        {"test": "b.tsv", "validation": "b.tsv"},
        {"train": "a.tsv", "test": "a.tsv", "validation_limit": 3},
        {"validation_limit": 3},
    ],
)
def test_validation_rows_are_neither_trained_nor_tested_on(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation"):
        Manifest.model_validate(FIELDS | {"data": data})


def test_an_extension_that_may_change_the_state_refuses_the_run_and_another_does_not(tmp_path: Path) -> None:
    manifest = Manifest.model_validate(FIELDS | {"extensions": {"7": "00ff", "301": ""}})
    assert Manifest.from_canonical(manifest.canonical(), "a peer") == manifest
    critical = Manifest.model_validate(FIELDS | {"extensions": {"7": "", "8": ""}})
    (tmp_path / "run.toml").write_text(critical.to_toml())
    for read in (
        lambda: Manifest.from_canonical(critical.canonical(), "a peer"),
        lambda: Manifest.from_toml(tmp_path / "run.toml"),
    ):
        with pytest.raises(UserError, match="kind 8") as caught:
            read()
        assert caught.value.code is Code.NEWER_PROTOCOL


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


@pytest.mark.parametrize("extension", [{"07": ""}, {"-1": ""}, {"x": ""}, {"1": "0"}, {"1": "FF"}])
def test_an_extension_has_one_form(extension: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="extensions"):
        Manifest.model_validate(FIELDS | {"extensions": extension})


# -- rewards -----------------------------------------------------------------------------------------

EXACT: dict[str, Any] = {"kind": "exact", "column": "answer"}


def reward(**fields: Any) -> dict[str, Any]:
    said = {"kind": "reward", "template": "{q}", "verifier": EXACT, "answer_tokens": 8}
    return FIELDS | {"task": said | fields}


@pytest.mark.parametrize(
    "verifier",
    [
        EXACT | {"strip": True},
        {"column": "answer", "ignore_case": False, "kind": "exact"},
    ],
)
def test_a_run_has_one_id_however_its_verifier_is_written(verifier: dict[str, Any]) -> None:
    manifest = Manifest.model_validate(reward(verifier=verifier, temperature=0, stop=[]))
    assert manifest.run_id == Manifest.model_validate(reward()).run_id
    assert manifest.task.verifier == EXACT
    assert not {"temperature", "stop"} & set(manifest.fields()["task"])


def test_a_reward_run_survives_its_two_forms(tmp_path: Path) -> None:
    numbers = {"kind": "json", "satisfies": {"enum": [1, 10**30], "maximum": 2}}
    whole = {"weight": 1, "verifier": {"kind": "boxed", "then": numbers}}
    verifier = {"kind": "sum", "terms": [whole]}
    manifest = Manifest.model_validate(reward(verifier=verifier, temperature=1, stop=["\r\n", '"""\n']))
    (tmp_path / "run.toml").write_text(manifest.to_toml())
    assert Manifest.from_toml(tmp_path / "run.toml").run_id == manifest.run_id
    assert Manifest.from_canonical(manifest.canonical(), "a peer") == manifest


def test_a_reward_has_no_slopes_and_other_losses_have() -> None:
    assert not Manifest.model_validate(reward()).task.has_slopes
    assert Manifest.model_validate(FIELDS).task.has_slopes


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"verifier": {}}, "needs a verifier"),
        ({"verifier": {"kind": "exact"}}, "column: Field required"),
        ({"verifier": {"kind": "exact", "colum": "a"}}, "column"),
        ({"answer_tokens": 0}, "answer_tokens"),
        ({"answer_tokens": MAX_ANSWER_TOKENS + 1, "max_tokens": 65_536}, "less than"),
        ({"answer_tokens": 64, "max_tokens": 64}, "answer_tokens"),
        ({"temperature": 0.01}, "temperature"),
        ({"temperature": 65.0}, "temperature"),
        ({"stop": ["x" * 65]}, "stop"),
        ({"stop": ["x"] * 9}, "stop"),
        ({"metric": "accuracy"}, "measured"),
        ({"loss": "centred"}, "centred"),
        ({"kind": "text"}, "no answers that are written"),
    ],
    ids=str,
)
def test_a_reward_run_that_cannot_be_measured_is_refused(
    fields: dict[str, Any], says: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=says):
        Manifest.model_validate(reward(**fields))
    (tmp_path / "run.toml").write_text(tomli_w.dumps(reward(**fields)))
    with pytest.raises(UserError, match=says) as caught:
        Manifest.from_toml(tmp_path / "run.toml")
    assert caught.value.code is Code.BAD_MANIFEST


def test_a_run_of_version_1_has_no_rewards() -> None:
    with pytest.raises(ValueError, match="version 1"):
        Manifest.model_validate(reward() | {"protocol": 1})


# -- version 1 ---------------------------------------------------------------------------------------


def test_a_manifest_of_version_1_is_read_and_written_without_the_keys_of_version_2(tmp_path: Path) -> None:
    manifest = Manifest.model_validate(version_1())
    assert Manifest.from_canonical(manifest.canonical(), "a peer") == manifest
    (tmp_path / "run.toml").write_text(manifest.to_toml())
    assert Manifest.from_toml(tmp_path / "run.toml").run_id == manifest.run_id
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
        Manifest.model_validate(version_1()).current("run.toml")
    assert caught.value.code is Code.OLDER_PROTOCOL
    assert "sfnode init" in caught.value.fix
    assert "sfnode export" in caught.value.fix


def test_a_run_names_its_files_by_digests_and_others_keep_their_bytes(tmp_path: Path) -> None:
    digests = {"train": "ab" * 32, "test": "cd" * 32}
    files = {"train": "a.tsv", "test": "b.jsonl"}
    plain = Manifest.model_validate(changed("data", **files))
    said = Manifest.model_validate(changed("data", **files, digests=digests))
    assert said.fields()["data"]["digests"] == digests
    assert "digests" not in plain.fields()["data"]
    (tmp_path / "run.toml").write_text(said.to_toml())
    assert Manifest.from_toml(tmp_path / "run.toml").run_id == said.run_id != plain.run_id
    assert Manifest.from_canonical(said.canonical(), "a peer") == said


@pytest.mark.parametrize("source", ["", "hf:glue:sst2:train", "builtin:reviews:train", "a.txt", "hf:a.tsv"])
def test_only_files_have_digests(source: str) -> None:
    with pytest.raises(ValueError, match="sources that are files"):
        Manifest.model_validate(changed("data", train=source, digests={"train": "ab" * 32}))


def test_a_run_with_groups_says_so_and_others_keep_their_bytes() -> None:
    plain, said = Training(), Manifest.model_validate(changed("training", group=8))
    assert said.fields()["training"]["group"] == 8
    again = said.model_copy(update={"training": said.training.model_copy(update={"group": 0})})
    assert "group" not in again.fields()["training"]
    assert (plain.batch_updates, plain.points, plain.update_forwards) == (1, 2, 8)
    assert (said.training.batch_updates, said.training.points) == (8, 1)
    assert said.training.update_forwards == said.training.batch_size


def test_a_run_with_a_decay_says_so_and_others_keep_their_bytes() -> None:
    said = Manifest.model_validate(organised(training={"decay": 0.99}))
    assert said.fields()["training"]["decay"] == 0.99
    plain = Manifest.model_validate(organised())
    assert "decay" not in plain.fields()["training"]
    assert Manifest.from_canonical(said.canonical(), "a peer") == said != plain


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.0001, float("nan")])
def test_a_decay_leaves_something_and_adds_nothing(decay: float) -> None:
    with pytest.raises(ValueError, match="decay"):
        Manifest.model_validate(organised(training={"decay": decay}))


def test_a_run_says_what_it_is_for_and_others_keep_their_bytes(tmp_path: Path) -> None:
    plain, words = Manifest.model_validate(FIELDS), "Reviews of films, für alle."
    assert "description" not in plain.fields()
    said = Manifest.model_validate(FIELDS | {"description": words})
    (tmp_path / "run.toml").write_text(said.to_toml())
    assert Manifest.from_toml(tmp_path / "run.toml").run_id == said.run_id != plain.run_id
    assert Manifest.from_canonical(said.canonical(), "a peer").description == words
    with pytest.raises(ValueError, match="version 1"):
        Manifest.model_validate(FIELDS | {"protocol": 1, "description": words})


@pytest.mark.parametrize(
    "words", ["a\nb", "\x1b[31mred", "right \u202eto left", " space", "x" * (MAX_DESCRIPTION + 1), "\ud800"]
)
def test_a_description_is_one_readable_paragraph(words: str) -> None:
    with pytest.raises(ValueError, match="description"):
        Manifest.model_validate(FIELDS | {"description": words})


@pytest.mark.parametrize("group", [-1, 1, MAX_GROUP + 1])
def test_a_group_has_two_updates_or_more_and_not_too_many(group: int) -> None:
    with pytest.raises(ValueError, match="group"):
        Manifest.model_validate(changed("training", group=group))


def test_a_run_with_random_bases_does_not_say_so(tmp_path: Path) -> None:
    """Runs from before there were published ones keep their ids."""
    plain = Manifest.model_validate(FIELDS)
    assert "bases" not in plain.fields()["training"]
    assert plain.training.unit == 1
    said = Manifest.model_validate(changed("training", basis="published", bases="ab" * 32))
    assert said.fields()["training"]["bases"] == "ab" * 32
    assert (said.training.unit, said.parameters().bases) == (1 / 8, b"\xab" * 32)
    (tmp_path / "run.toml").write_text(said.to_toml())
    assert Manifest.from_toml(tmp_path / "run.toml") == said
    assert said.run_id != plain.run_id
    again = said.model_copy(update={"training": said.training.with_random_bases()})
    assert again.run_id == plain.run_id


@pytest.mark.parametrize("fields", [{"basis": "published"}, {"bases": "ab" * 32}, {"bases": "AB" * 32}])
def test_bases_are_published_if_and_only_if_a_digest_names_them(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="bases"):
        Manifest.model_validate(changed("training", **fields))


def test_a_run_that_starts_from_another_is_another_run_and_says_so(tmp_path: Path) -> None:
    plain, child = Manifest.model_validate(FIELDS), Manifest.model_validate(changed("model", parent=PARENT))
    assert "parent" not in plain.to_toml()
    assert child.run_id != plain.run_id
    assert Manifest.from_canonical(child.canonical(), "a peer") == child
    (tmp_path / "run.toml").write_text(child.to_toml())
    assert Manifest.from_toml(tmp_path / "run.toml").run_id == child.run_id
    other = Manifest.model_validate(changed("model", parent=PARENT | {"epoch": 8}))
    assert other.run_id != child.run_id


@pytest.mark.parametrize("change", [{"epoch": 65_536}, {"epoch": -1}, {"run_id": ""}, {"digest": "AB" * 32}])
def test_a_parent_is_named_by_a_seal(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="parent"):
        Manifest.model_validate(changed("model", parent=PARENT | change))
