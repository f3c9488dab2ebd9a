"""Tests of commands about the past of a run: log, checkout, fork, archive and import."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sfnode.cli.options import note
from sfnode.cli.trained_model import load
from sfnode.engine import drift
from sfnode.engine.trainer import Trainer
from sfnode.manifest import Manifest
from sfnode.manifest.sections import Parent
from sfnode.models import bases, model_files
from sfnode.preparing import scalars
from sfnode.preparing.manifest import build
from sfnode.schema.history import (
    CheckoutResult,
    HistoryResult,
    LeaderboardResult,
    WhyResult,
)
from sfnode.schema.node_state import UNCOUNTED_WORDS, Uncounted
from sfnode.schema.results import ArchiveStatement, ImportResult, VerifyResult
from sfnode.store.data_folder import Layout
from sfnode.store.named_files import NamedFiles
from sfnode.tasks import calibration
from sfprotocol.decisions import FACTOR_ONE, RATE_ONE, Budget, Oversized, Part, RateFrom, Revoke, Void, Worth
from tests.cli.helpers import Run
from tests.node.helpers import manifest
from tests.protocol.feeds import origin_of
from tests.store.folders import Folder, first_order, joined, organised
from tests.wording import has

DEFAULT = organised(build({}), rank=4, epoch_updates=8, update_budget=1000, scalar_delta=0.015)
"""Measured units of scalars are powers of two, so none equals this one."""

RUN = DEFAULT.model_copy(update={"data": DEFAULT.data.model_copy(update={"validation_limit": 16})})
A, B = (origin_of(name).hex() for name in "ab")
RATE = RUN.parameters().rate
HARM = 2
Parsed = Callable[..., Any]


@pytest.fixture(autouse=True)
def few_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure little in forks, and for cards."""
    monkeypatch.setattr(drift, "TOKENS", 8)
    monkeypatch.setattr(calibration, "CALIBRATION_ROWS", 8)
    monkeypatch.setattr(scalars, "SLOPES", 8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the folder of an organiser's node that has sealed four epochs. In epoch HARM the updates of b have
    the largest allowed scalar."""
    path = tmp_path_factory.mktemp("run") / "node"
    with Folder(path, RUN, "a", organises=True) as made:
        made.admit("a", "b")
        for epoch in range(4):
            made.make(6, lambda: 1)
            made.bring("b", [RUN.training.scalar_limit * (-1 if epoch == HARM else 0)] * 3)
            made.close()
            if epoch != HARM:
                made.decide(Worth(epoch, 8, (Part(0, 6, 2_000_000_001, 2000), Part(64, 3, -1, 0))))
            made.seal(rates=[RateFrom(3, RATE // 2)] if epoch == 1 else [])
            made.evaluate(epoch, 0.6, 0.9 + (epoch >= HARM))
        made.make(2)
        made.call("b", "Ada")
    return path


@pytest.fixture
def parsed(sfnode: Run, folder: Path) -> Parsed:
    """Return a function that runs a command on the folder and returns its JSON output."""

    def run(*arguments: object) -> Any:
        return json.loads(sfnode(*arguments, "--data-dir", folder, "--json").done().out)

    return run


# -- log -----------------------------------------------------------------------------------------------


def test_log_shows_decisions_seals_and_who_brought_what(sfnode: Run, folder: Path) -> None:
    ended = sfnode("log", "--data-dir", folder)
    assert (ended.status, ended.err) == (0, "")
    lines = ended.out.splitlines()
    times = [line[:16] for line in lines[:2]]
    assert all(re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d", time) for time in times)
    assert lines[0][16:] == f"  admits {A[:16]} for 1,000 updates a round"
    assert lines[1][16:] == f"  admits Ada ({B[:8]}) for 1,000 updates a round"
    seal = next(line for line in lines if "updates of round" in line)
    assert "9 of 9 updates of round 0 count, accuracy " in seal
    assert re.search(r"accuracy 60\.0 % \(55\.0-65\.0 %\) on [\d,]+ rows kept aside$", seal)
    assert lines[lines.index(seal) + 1].split() == [A[:8], "6,", "Ada", "3"]
    assert lines[-1].startswith(f"run {RUN.name} (")
    assert lines[-1].endswith("4 rounds, 36 of 1,000 updates count, 2 are not judged yet")


def test_log_tells_a_member_why_its_work_does_not_count(sfnode: Run, tmp_path: Path) -> None:
    with Folder(tmp_path / "node", RUN, "a", organises=True) as made:
        made.admit("a", "b")
        for epoch in range(3):
            made.bring("b", [1] * 8)
            made.close()
            if epoch == 1:
                made.decide(Oversized(1, (64,)))
            made.seal(skipped=[64] * (epoch == 1), factor=0 if epoch == 2 else FACTOR_ONE)
        made.decide(Revoke(1, 9))
        made.decide(Void(0, 0, (1,)))
        made.bring("b", [1] * 8)
        made.close()
        made.call("b", "Ada")
    ask = partial(sfnode, "log", "--data-dir", tmp_path / "node", "--why")
    lines = ask("Ada").out.splitlines()
    assert lines[0].endswith("0 of 8 updates count: its round was taken back, or it comes from one that was")
    assert lines[1] == f"round 1: 0 of 8 updates count: {UNCOUNTED_WORDS[Uncounted.OVERSIZED]}"
    assert lines[2].endswith(UNCOUNTED_WORDS[Uncounted.NOTHING])
    assert lines[3].endswith("no seal has judged it yet")
    assert lines[4] == f"member 1, Ada ({B[:8]}): 0 updates count, revoked from round 9 on"
    assert ask(1).out == ask(B[:8]).out == ask("Ada").out
    said = WhyResult.model_validate_json(ask(1, "--json").out)
    assert [one.reason for one in said.verdicts] == ["taken-back", "oversized", "nothing", "waits"]
    assert "0 of 2 members are 'nobody'" in ask("nobody").err
    assert "0 of 8 updates of round 1 count, 1 left out (oversized)" in sfnode(*ask.args[:3]).out


def test_log_as_data(parsed: Parsed) -> None:
    found = HistoryResult.model_validate(parsed("log"))
    assert (found.run_id, found.sealed, found.counted, found.waiting) == (RUN.run_id.hex(), 4, 36, 2)
    kinds = " ".join(entry.kind for entry in found.entries)
    assert kinds == "admit admit worth seal worth seal seal worth seal"


def test_log_of_an_open_run_shows_its_epochs(sfnode: Run, tmp_path: Path) -> None:
    with Folder(tmp_path / "open", build({}), "a") as made:
        made.make(5)
    ended = sfnode("log", "--data-dir", tmp_path / "open")
    assert ended.out.splitlines()[0].split()[:4] == ["round", "0", "has", "5"]
    assert ended.out.splitlines()[-1].endswith("open: 5 of 3,000 updates count")


def test_updates_are_ordered_by_feed_and_step(sfnode: Run, folder: Path) -> None:
    said = map(json.loads, sfnode("log", "--updates", "--data-dir", folder).out.splitlines())
    order = [(one["origin"], one["incarnation"], one["step"]) for one in said]
    assert order == sorted(order)
    assert order[0][0] == B, "the member who came last"


def test_updates_of_a_first_order_run_are_told_with_every_scalar(sfnode: Run, tmp_path: Path) -> None:
    run = first_order(manifest("vectors"))
    with Folder(tmp_path / "vectors", run, "a", organises=True) as made:
        made.admit("a")
        made.make(2, lambda: (9,) * 24)
        made.make(1, lambda: (100,) * 24)  # more than its limit: it moves nothing
        made.close()
        made.seal()
    said = sfnode("log", "--updates", "--data-dir", tmp_path / "vectors").out.splitlines()
    lines = [json.loads(line) for line in said]
    assert [line["scalar"] for line in lines] == [[9] * 24, [9] * 24, [100] * 24]
    assert [line["weight"] for line in lines] == [run.parameters().rate] * 2 + [0]


def test_a_complete_run_says_of_nothing_that_it_waits(sfnode: Run, tmp_path: Path) -> None:
    with Folder(tmp_path / "done", RUN, "a", organises=True) as made:
        made.admit("a")
        made.make(6)
        made.close()
        made.seal()
        made.make(3)
        made.decide(Budget(4))
    ended = sfnode("log", "--data-dir", tmp_path / "done").out.splitlines()[-1]
    assert ended.endswith(": complete, 1 round, 4 and 2 more updates count, 3 others do not count")


def test_as_of_now_is_for_updates(sfnode: Run, folder: Path) -> None:
    sfnode("log", "--as-of-now", "--data-dir", folder).failed("SF010")
    every = sfnode("log", "--updates", "--as-of-now", "--data-dir", folder).out.splitlines()
    assert (len(every), len(sfnode("log", "--updates", "--data-dir", folder).out.splitlines())) == (38, 36)


# -- checkout ------------------------------------------------------------------------------------------


def test_checkout_has_the_state_of_any_seal(parsed: Parsed, folder: Path, sfnode: Run) -> None:
    states = [CheckoutResult.model_validate(parsed("history", "checkout", epoch)) for epoch in range(4)]
    assert [state.updates for state in states] == [9, 18, 27, 36]
    last = VerifyResult.model_validate(parsed("verify"))
    assert states[-1].core_digest == last.core_digest
    assert last.seals
    assert states[-1].named_digest == last.seals.named_digest
    said = sfnode("history", "checkout", 1, "--data-dir", folder).out
    assert said.startswith("up to round 1 18 updates count\nfingerprint  ")


def test_checkout_writes_the_model_of_the_seal_and_export_that_of_the_last(
    sfnode: Run, folder: Path, tmp_path: Path
) -> None:
    here = ("--data-dir", folder)
    first = sfnode("history", "checkout", 0, "--out", tmp_path / "first", *here).done()
    assert "after round 0, " in first.out
    third = sfnode("history", "checkout", 3, "--out", tmp_path / "third", *here, "--json").done()
    assert CheckoutResult.model_validate(json.loads(third.out)).updates == 36
    assert f"wrote {tmp_path / 'third'} (after round 3, " in third.err, "JSON stands alone"
    sfnode("export", "--out", tmp_path / "last", *here).done()
    assert model_files.difference(tmp_path / "third", tmp_path / "last") is None
    best = sfnode("export", "--out", tmp_path / "best", "--seal", "best", *here).done()
    assert "after round 0, " in best.out, "the one that was evaluated"
    assert model_files.difference(tmp_path / "first", tmp_path / "best") is None
    told = model_files.difference(tmp_path / "first", tmp_path / "last")
    assert told
    assert "has other values" in told


def test_the_card_of_an_export_tells_how_good_it_is_and_who_brought_it(
    sfnode: Run, folder: Path, tmp_path: Path
) -> None:
    assert sfnode("export", "--out", "out", "--data-dir", folder).status == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| this one, of round 3 | accuracy | 0.600 | 0.550 to 0.650 | 1.9000 |" in card
    has(card, "| the best, of round ", f"| `{A}` |  | 24 |", f"| `{B}` | Ada | 12 |")


@pytest.mark.parametrize(
    ("options", "moment"),
    [((), "after round 3 of the run, 36 updates"), (("--as-of-now",), "of the run, 38 updates")],
)
def test_the_card_of_an_export_is_verified_by_its_own_commands(
    sfnode: Run, folder: Path, tmp_path: Path, options: tuple[str, ...], moment: str
) -> None:
    assert sfnode("export", "--out", "out", *options, "--data-dir", folder).status == 0
    card = (tmp_path / "out" / "README.md").read_text()
    digest = re.search(rf"The model {moment}, fingerprint `(\w+)`", card)
    assert digest is not None
    for block in re.findall(r"```sh\n(.*?)```", card, re.DOTALL):
        for line in (line for line in block.splitlines() if line.startswith("sfnode ")):
            ended = sfnode(*line.replace("NODE", str(folder)).split()[1:]).done()
            assert digest[1] in ended.out, line
        sums = re.search(r"<<'END'\n(.*)END", block, re.DOTALL)
    assert sums
    assert subprocess.run(["sha256sum", "-c"], input=sums[1], text=True, cwd=tmp_path).returncode == 0


def test_what_has_no_seal_is_refused_with_advice(sfnode: Run, folder: Path, tmp_path: Path) -> None:
    sfnode("history", "checkout", 4, "--data-dir", folder).refused(
        "SF010: round 4 of this run does not count yet: the last one is 3"
    )
    joined(tmp_path / "open", build({}))
    for command in (
        ("history", "checkout", 0),
        ("history", "fork", 0, "--out", tmp_path / "new"),
    ):
        sfnode(*command, "--data-dir", tmp_path / "open").refused("SF018: an open run has no decisions")
    assert not (tmp_path / "new").exists()


# -- leaderboard -----------------------------------------------------------------------------------------


def test_the_leaderboard_follows_from_the_log_alone_to_the_digit(
    sfnode: Run, folder: Path, tmp_path: Path
) -> None:
    ended = sfnode("leaderboard", "--data-dir", folder)
    assert (ended.status, ended.err) == (0, "")
    assert ended.out.startswith("members by gain, then by updates that count\n")
    assert [line.split() for line in ended.out.splitlines()[2:4]] == [
        ["1", A[:8], "24", "100", "%"],
        ["2", "Ada", B[:8], "12", "worse"],
    ]
    details = sfnode("leaderboard", "--details", "--data-dir", folder).out.splitlines()
    assert [line.split()[-6:] for line in details[2:4]] == [
        [A[:16], "24", "100", "%", "18", "+6.000000003"],
        ["Ada", B[:16], "12", "worse", "9", "-0.000000003"],
    ]
    assert details[-1].endswith("36 updates count, worth +6.000000000 nats")
    assert ended.out.splitlines()[-1].endswith("4 rounds, 36 updates count")
    files_of_it = tmp_path / "copy"
    files_of_it.mkdir()
    for name in ("run.toml", "updates.sqlite"):
        for file in folder.glob(f"{name}*"):
            shutil.copy(file, files_of_it / file.name)
    again = sfnode("leaderboard", "--recompute", "--data-dir", files_of_it)
    assert again.out.splitlines()[:-1] == ended.out.splitlines()[:-1]
    assert again.out.splitlines()[-1].endswith("count, log verified")


def test_figures_that_nobody_else_measures_are_told_apart(sfnode: Run, folder: Path) -> None:
    ended = sfnode("leaderboard", "--remeasure", 2, "--data-dir", folder, "--json").done()
    found = LeaderboardResult.model_validate(json.loads(ended.out))
    assert [one.epoch for one in found.epochs] == [1, 3]
    assert not any(one.agrees for one in found.epochs)
    assert ended.err.count("DIFFERS") == 2


# -- fork ----------------------------------------------------------------------------------------------


def test_a_fork_starts_from_a_seal_and_says_so(sfnode: Run, folder: Path, tmp_path: Path, home: Path) -> None:
    state = json.loads(sfnode("history", "checkout", 1, "--data-dir", folder, "--json").out)
    ended = sfnode(
        "history", "fork", 1, "--out", tmp_path / "fork", "--data-dir", folder, "--name", "again"
    ).done()
    fork = Manifest.from_toml(tmp_path / "fork/run.toml")
    seal = Parent(run_id=RUN.run_id.hex(), epoch=1, digest=state["core_digest"])
    assert fork.model.parent == seal
    assert (fork.name, fork.task.template, fork.data) == ("again", RUN.task.template, RUN.data)
    assert fork.run_id.hex() in ended.out
    assert fork.organised.organiser != RUN.organised.organiser
    assert fork.training.learning_rate == RATE / RATE_ONE  # half of it only from epoch 3 on
    assert fork.model.digest == model_files.digest(tmp_path / "fork/model")
    assert list((home / ".local/share/sfnode/keys").glob(f"{fork.run_id.hex()}*"))

    at_seal = load(folder, None, "cpu", "float32", epoch=1).trainer.evaluate(32)
    with Trainer.load(fork, model_override=tmp_path / "fork/model", training=False) as begun:
        assert begun.evaluate_base(32, calibrated=True) == at_seal
    begun_from(tmp_path / "fork/model", joined(tmp_path / "node", fork))
    told = sfnode("verify", "--data-dir", tmp_path / "node").out
    assert f"forked from run {RUN.run_id.hex()[:16]} after round 1, not checked" in told
    log = sfnode("log", "--data-dir", tmp_path / "node", "--json").out
    assert HistoryResult.model_validate_json(log).parent == seal
    assert sfnode("history", "archive", "--out", tmp_path / "old.sfnode", "--data-dir", folder).status == 0
    for parent in (folder, tmp_path / "old.sfnode"):
        checked = sfnode("verify", "--parent", parent, "--data-dir", tmp_path / "node").done()
        assert f"its base model is run {RUN.run_id.hex()[:16]} after round 1" in checked.out


def test_a_fork_may_train_other_layers_at_other_numbers(sfnode: Run, folder: Path, tmp_path: Path) -> None:
    """Such a fork gets new bases and numbers, except those that are given."""
    keys = ("model.target_modules=v_proj", "training.rank=2", "training.basis=gradients", "task.loss=plain")
    keys += ("training.epoch_updates=16", "training.update_budget=512", "training.batch_size=2")
    keys += ("training.epsilon=0.002",)
    said = (word for key in keys for word in ("--set", key))
    sfnode("history", "fork", 1, "--out", tmp_path / "fork", "--data-dir", folder, *said).done()
    fork = Manifest.from_toml(tmp_path / "fork/run.toml")
    assert {target.name.rpartition(".")[2] for target in fork.model.parsed_targets()} == {"v_proj"}
    numbers = fork.training
    assert (numbers.rank, numbers.epoch_updates, numbers.update_budget) == (2, 16, 512)
    assert (numbers.batch_size, numbers.epsilon, fork.task.loss, fork.task.prior) == (2, 0.002, "plain", ())
    assert numbers.scalar_delta != RUN.training.scalar_delta, "it was measured for these layers"
    assert numbers.learning_rate != RUN.training.learning_rate, "it was tried out for them"
    assert (fork.organised.quota, fork.organised.subspace_epochs) == (4 * 16, 1)
    assert fork.model.parent
    assert fork.model.parent.run_id == RUN.run_id.hex()
    file = bases.path_in(tmp_path / "fork", numbers.bases)
    bases.read(file, fork.model.parsed_targets(), fork.basis_columns, numbers.bases)


def test_a_fork_with_another_budget_keeps_the_numbers(sfnode: Run, folder: Path, tmp_path: Path) -> None:
    where = ("--out", tmp_path / "fork", "--data-dir", folder)
    sfnode("history", "fork", 1, *where, "--set", "training.update_budget=99").done()
    fork = Manifest.from_toml(tmp_path / "fork/run.toml")
    assert fork.training == RUN.training.model_copy(
        update={"update_budget": 99, "learning_rate": RATE / RATE_ONE}
    )
    assert fork.model.targets == RUN.model.targets


def test_runs_that_come_from_each_other_are_told_as_one_story(
    sfnode: Run, folder: Path, tmp_path: Path, home: Path
) -> None:
    """Only runs in this user's folders are shown."""
    runs = [RUN]
    for name in ("second", "third"):
        before = Parent(run_id=runs[-1].run_id.hex(), epoch=1, digest="ab" * 32)
        model = RUN.model.model_copy(update={"parent": before})
        runs.append(RUN.model_copy(update={"name": name, "model": model}))
        joined(tmp_path / name, runs[-1])
    first, second = (f"run {run.run_id.hex()[:16]} after round 1" for run in runs[:2])
    third = ("--data-dir", tmp_path / "third")
    assert f"begins with {second}, fingerprint abababab" in sfnode("log", *third).out.splitlines()[0]
    for known in (folder, tmp_path / "second"):
        note(known)
    lines = sfnode("log", *third).out.splitlines()
    assert f"with {first} ({RUN.name}), fingerprint abababab; `sfnode log --data-dir {folder}`" in lines[0]
    assert f"with {second} (second)" in lines[1]
    told = sfnode("verify", *third).out
    assert f"forked from {second} (second), not checked" in told
    assert (
        f"`sfnode verify --data-dir {tmp_path / 'third'} --parent {tmp_path / 'second'}` checks that" in told
    )
    assert f"forked from {first} ({RUN.name}), not checked" in told


def test_a_fork_that_cannot_be_says_why(sfnode: Run, folder: Path, tmp_path: Path) -> None:
    for key, reason in {"training.rank": "a power of two", "model.target_modules": "SF0"}.items():
        where = ("--out", tmp_path / key, "--data-dir", folder)
        sfnode("history", "fork", 1, *where, "--set", f"{key}=3").failed(reason)
        assert not (tmp_path / key / "run.toml").exists()


def begun_from(model: Path, folder: Path) -> None:
    """Record a base model in a data folder, as a node does that was started with it."""
    NamedFiles(model=model).keep(Layout(folder))


def test_a_fork_of_something_else_is_found_out(sfnode: Run, folder: Path, tmp_path: Path) -> None:
    """The manifest names another state, or a model that does not match the state."""
    assert sfnode("history", "fork", 1, "--out", tmp_path / "fork", "--data-dir", folder).status == 0
    assert sfnode("history", "checkout", 3, "--out", tmp_path / "other", "--data-dir", folder).status == 0
    fork, other = Manifest.from_toml(tmp_path / "fork/run.toml"), model_files.digest(tmp_path / "other")
    parent = fork.model.parent
    assert parent
    for name, lie, model, says in (
        ("epoch", {"parent": parent.model_copy(update={"epoch": 0})}, "fork/model", "SF084"),
        ("digest", {"parent": parent.model_copy(update={"digest": "0" * 64})}, "fork/model", "SF084"),
        ("run", {"parent": parent.model_copy(update={"run_id": "0" * 64})}, "fork/model", "SF013"),
        ("model", {"source": "other", "digest": other}, "other", "has other values"),
    ):
        run = fork.model_copy(update={"model": fork.model.model_copy(update=lie)})
        begun_from(tmp_path / model, joined(tmp_path / name, run))
        sfnode("verify", "--parent", folder, "--data-dir", tmp_path / name).failed(says)


# -- archive, import -----------------------------------------------------------------------------------


def test_a_run_goes_from_one_folder_to_another_in_a_file(
    sfnode: Run, folder: Path, tmp_path: Path, parsed: Parsed
) -> None:
    said = ArchiveStatement.model_validate(parsed("history", "archive", "--out", tmp_path / "run.sfnode"))
    assert (said.updates, said.sealed) == (38, 4)
    ended = sfnode("history", "import", tmp_path / "run.sfnode", "--data-dir", tmp_path / "there").done()
    has(ended.out, "38 updates and 17 decisions are new to ", f"digest {said.digest}\n")
    there = json.loads(sfnode("verify", "--data-dir", tmp_path / "there", "--json").out)
    assert there | {"signatures": 9} == parsed("verify")  # one vouches for all before it
    again = sfnode(
        "history", "import", tmp_path / "run.sfnode", "--data-dir", tmp_path / "there", "--json"
    ).out
    result = ImportResult.model_validate(json.loads(again))
    assert (result.new_updates, result.new_decisions, result.same) == (0, 0, True)


def test_what_is_no_archive_is_refused_with_advice(sfnode: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("hello")
    for name in ("file", "missing"):
        sfnode("history", "import", tmp_path / name, "--data-dir", tmp_path / "there").refused("SF083")
        assert not (tmp_path / "there").exists()
