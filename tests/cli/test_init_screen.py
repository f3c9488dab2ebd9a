"""Tests of the screen of `sfnode init FILE`: contents of the file, proposals, and changes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sfnode.manifest import Manifest
from sfnode.models import model_files
from sfnode.preparing import plan, scalars
from sfnode.tasks import calibration
from sfnode.tasks.templates import ASKING
from tests.cli import tickets
from tests.cli.helpers import Run
from tests.wording import has

Answers = Callable[..., None]
TINY = ("--model", "builtin:tiny")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Measure little, and use a new cache."""
    monkeypatch.setattr(scalars, "SLOPES", 8)
    monkeypatch.setattr(calibration, "CALIBRATION_ROWS", 8)
    monkeypatch.setenv("SFNODE_MEASURE", "false")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    tickets.write(Path("tickets.csv"))


@pytest.fixture
def answers(answers: Answers) -> Answers:
    """Return a function that types these lines at a terminal, and then q."""
    return lambda *lines: answers(*lines, "q", "q")


def rows(file: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def run() -> Manifest:
    return Manifest.from_toml(Path("run.toml"))


def lines(said: str) -> dict[str, str]:
    """Return the lines of the last screen, keyed by title."""
    screen = said.rpartition("\n 1 ")[2].partition("\n\n")[0]
    found = re.split(r"\n {0,1}\d+ ", screen)
    return {line[:34].strip(): " ".join(line[34:].split()) for line in found}


# -- the messy case ------------------------------------------------------------------------------------

ASKED = {
    "Which column says what is right?": "category, with 4 classes: Delivery 81, Billing 80, Login 71, Other "
    "64. It might be agent, channel instead",
    "Which columns are read?": "subject, body",
    "What is learnt?": "a class for each text, by a head: the model stays as it is (fast)",
    "How is it learnt?": "by gradients: it learns most for the time",
    "Which rows measure it?": "59 of the 296 rows, on which nobody trains",
    "4 rows do not fit": "left out: line 10: 'subject', 'body' are empty; line 52: 'category' is "
    "empty; line 166: not UTF-8, in which the file has to be saved: as Windows-1252 or Latin-1 it reads "
    "'Où'; ...",
    "Which base model?": "builtin:tiny",
    "Who says what counts?": "your node, by a key that is made now",
    "Name of the run": "tickets",
    "Which file is written?": "run.toml",
    "Who can read all rows?": "everybody who joins: they go with the run",
}


def test_at_a_terminal_enter_takes_what_a_messy_table_suggests(
    sfnode: Run, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SFNODE_MEASURE")
    answers("")
    ended = sfnode("init", "tickets.csv", *TINY).done()
    shown = ended.out.splitlines()
    assert shown[0] == "tickets.csv: 300 rows, 7 columns"
    assert shown[2].split() == list(tickets.NAMES)
    assert [line.split()[0] for line in shown[3:8]] == ["9000", "9001", "9002", "9003", "9004"]
    assert max(map(len, shown[:8])) <= 100
    assert lines(ended.out.partition("Enter: ")[0]) == ASKED
    task, data = run().task, run().data
    assert (task.kind, task.template, task.label_field) == (
        *("sequence-classification", "{subject}\n{body}" + ASKING),
        "category",
    )
    assert task.verbalizer == {name: name for name in tickets.CLASSES}
    trained, tested = rows(data.train), rows(data.test)
    assert (len(trained), len(tested)) == (237, 59)
    assert {tuple(row) for row in trained} == {("subject", "body", "category")}
    judged = data.validation_limit
    assert f"Trains on {237 - judged} rows of {data.train}; {judged} others there say" in ended.out
    has(ended.out, f"Is measured on 59 more, {data.test}.", "Beside it: the commonest label of ")
    assert "Learns by gradients: 256 updates of 512 B, in rounds of 4." in ended.out
    assert run().training.is_first_order
    has(ended.out, "trains it here alone in a minute or two, to see how well it goes", "Its bases are in ")
    assert Path(f"{run().training.bases}.bases").is_file()
    has(ended.out, "  sfnode swarm --run run.toml ", "  sfnode join --run run.toml --organise ")
    assert "  sfnode invite " in ended.out


def test_without_a_terminal_yes_takes_it_but_bad_rows_are_refused(sfnode: Run) -> None:
    asked = sfnode("init", "tickets.csv", *TINY).failed("SF010: nobody is here to confirm")
    assert lines(asked.out)["Which column says what is right?"] == ASKED["Which column says what is right?"]
    sfnode("init", "tickets.csv", "--yes", *TINY).failed(
        "SF031: 4 of the 300 rows of tickets.csv are bad",
        "tickets.csv, line 166: not UTF-8",
        "--skip-bad-rows",
    )
    assert not Path("run.toml").exists()
    assert sfnode("init", "tickets.csv", "--yes", "--skip-bad-rows", *TINY).status == 0
    assert len(rows(run().data.train)) == 237


def test_the_same_table_is_the_same_rows_whoever_reads_it(sfnode: Run) -> None:
    names = []
    for mark in ",;":
        tickets.write(Path("tickets.csv"), delimiter=mark)
        flags = ("--yes", "--skip-bad-rows", "--force", *TINY)
        assert sfnode("init", "tickets.csv", *flags).status == 0
        names.append((run().data.train, run().data.test))
    assert len(set(names)) == 1


def test_forward_passes_alone_may_be_asked_for(sfnode: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SFNODE_MEASURE")
    flags = ("--yes", "--skip-bad-rows", "--force", *TINY)
    ended = sfnode("init", "tickets.csv", "--set", "training.estimator=zeroth-order", *flags).done()
    assert lines(ended.out)["How is it learnt?"] == "by forward passes alone: it learns far less"
    assert (run().protocol, run().training.estimator, run().training.basis) == (4, "zeroth-order", "features")


def test_an_open_run_has_no_gradients_and_says_so(sfnode: Run) -> None:
    flags = ("--open", "--yes", "--skip-bad-rows", *TINY)
    refused = sfnode("init", "tickets.csv", "--set", "training.estimator=first-order", *flags)
    assert "SF010: training.estimator: an open run has no gradients" in refused.err
    assert not Path("run.toml").exists()
    assert sfnode("init", "tickets.csv", *flags).status == 0
    assert run().training.estimator == "zeroth-order"


# -- answers -------------------------------------------------------------------------------------------


def test_every_line_can_be_changed_and_what_cannot_be_is_asked_again(sfnode: Run, answers: Answers) -> None:
    answers(
        *("1", "id", "colour", "channel"),  # numbers that are a score, then a column that is not there
        *("2", "body,agent"),
        *("3", "by magic", "words"),
        *("4", "sideways", "forward"),
        *("5", "200", "50"),
        *("6", "perhaps", "yes"),
        *("7", "./nowhere", "builtin:tiny"),
        *("8", "nobody"),
        *("9", "mine"),
        *("10", "tickets.csv", "own.toml"),
        *("17", "abc", "fly=1", "training.rank=x", "training.rank=64", ""),
    )
    ended = sfnode("init", "tickets.csv", "--model", "facebook/opt-125m").done()
    has(
        ended.err,
        "'id' of tickets.csv cannot say what is right: it holds 299 different numbers",
        "tickets.csv has no column 'colour'",
        "'by magic' is not an answer",
        "'sideways' is not an answer",
        "200 of 299 rows are too many to hold out",
        "'perhaps' is not an answer",
        "there is no folder ./nowhere",
        "tickets.csv exists already",
        "'17' is neither the number of a line nor KEY=VALUE\n  Type 1 to 11 to change that line",
        "'abc' is neither the number of a line nor KEY=VALUE",
        "there is no key 'fly'",
        "'--set training.rank'",
    )
    made = Manifest.from_toml(Path("own.toml"))
    assert (made.name, made.model.source, made.admission) == ("mine", "builtin:tiny", "open")
    assert (made.task.kind, made.task.label_field) == ("classification", "channel")
    assert made.task.template == "{body}\n{agent}\nchannel:"
    assert (made.training.rank, len(rows(made.data.test))) == (64, 50)


def test_answers_outlive_an_error(sfnode: Run, answers: Answers) -> None:
    answers("9", "kept", "training.rank=12", "", "training.rank=16", "description=Sorts tickets.", "")
    ended = sfnode("init", "tickets.csv", *TINY).done()
    assert "SF010: training.rank: rank must be a power of two" in ended.err
    assert (run().name, run().description, run().training.rank) == ("kept", "Sorts tickets.", 16)
    assert sorted(file.name for file in Path().glob("tickets*")) == sorted(
        ["tickets.csv", run().data.train, run().data.test]
    )


def test_a_file_that_cannot_be_read_is_asked_for_again(sfnode: Run, answers: Answers) -> None:
    Path("empty.csv").touch()
    answers("nowhere.csv", "empty.csv", "tickets.csv", "q")
    ended = sfnode("init", *TINY)
    assert (ended.status, "Nothing was written." in ended.out) == (0, True)
    has(ended.err, "there is no file nowhere.csv", "empty.csv has no rows")
    assert not Path("run.toml").exists()


def test_other_data_may_measure_the_model(sfnode: Run, answers: Answers) -> None:
    Path("good.csv").write_text("subject,body,category\nHelp,It is lost,Delivery\n")
    answers("5", "nowhere.csv", "good.csv", "")
    assert sfnode("init", "tickets.csv", *TINY).status == 0
    assert run().data.test == "good.csv"
    assert len(rows(run().data.train)) == 296


def test_what_options_say_is_on_the_screen(sfnode: Run, answers: Answers) -> None:
    answers("q")
    ended = sfnode("init", "tickets.csv", "--label", "channel", "--open", "--test", "other.csv", *TINY)
    shown = lines(ended.out.partition("Enter: ")[0])
    assert shown["Which column says what is right?"].startswith("channel, with 3 classes")
    assert shown["Who says what counts?"] == "nobody: an open run, among friends"
    assert shown["Which rows measure it?"] == "other.csv"


# -- the model that was used last ------------------------------------------------------------------------


def test_the_model_that_was_used_last_is_proposed(sfnode: Run) -> None:
    assert plan.last_model() == plan.RECOMMENDED
    flags = ("--yes", "--skip-bad-rows")
    assert sfnode("init", "tickets.csv", *flags, *TINY).status == 0
    assert plan.last_model() == "builtin:tiny"
    again = sfnode("init", "tickets.csv", *flags, "--force")
    assert lines(again.out)["Which base model?"] == "builtin:tiny (used last)"
    plan.remember_model("/a/folder/that/has/gone")
    assert plan.last_model() == plan.RECOMMENDED


def test_the_recommended_model_need_not_be_downloaded_where_it_is_in_the_cache() -> None:
    folder = model_files.cache() / Path(plan.RECOMMENDED).name
    folder.mkdir(parents=True)
    (folder / model_files.SINGLE).touch()
    assert plan.last_model() == str(folder)


# -- files of all kinds ----------------------------------------------------------------------------------


def test_too_few_rows_are_refused(sfnode: Run) -> None:
    Path("few.csv").write_text("text,label\nfine,good\n")
    ended = sfnode("init", "few.csv", "--yes", *TINY)
    assert "SF031: few.csv has 1 rows to learn from, and 10 are the least" in ended.err


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("free.csv", "question,answer\n" + "".join(f"What is {n}+1?,{n + 1} it is\n" for n in range(20)),
         "completion"),
        ("story.csv", "text\n" + "".join(f"Once upon a time no. {n}\n" for n in range(20)), "text"),
        ("quiz.csv", "question,A,B,answer\n" + "".join(f"{n} odd?,yes,no,{'BA'[n % 2]}\n" for n in range(20)),
         "classification"),
    ],
)  # fmt: skip
def test_choices_free_answers_and_bare_texts_become_runs(
    name: str, text: str, kind: str, sfnode: Run
) -> None:
    Path(name).write_text(text)
    sfnode("init", name, "--yes", *TINY).done()
    assert run().task.kind == kind
    assert len(rows(run().data.test)) == 4


# -- what people bring ---------------------------------------------------------------------------------


def table(text: str, label: str = "label", *, count: int = 40, names: Sequence[str] = "ab") -> str:
    lines = "".join(f"{text} no. {n};{names[n % len(names)]}\n" for n in range(count))
    return f"text;{label}\n{lines}"


def test_a_table_of_an_old_windows_is_shown_as_it_reads_and_written_anew(sfnode: Run) -> None:
    Path("old.csv").write_bytes(table("Das Gerät hängt").encode("cp1252"))
    ended = sfnode("init", "old.csv", "--yes", *TINY).done()
    has(ended.out, "read in Windows-1252, so that a word is 'Gerät'", "Das Gerät hängt no. 0")
    assert {row["text"][:16] for row in rows(run().data.train)} == {"Das Gerät hängt "}


def test_a_file_that_measures_is_written_anew_where_nodes_would_not_read_it_so(sfnode: Run) -> None:
    Path("train.csv").write_text(table("It is lost"))
    Path("test.csv").write_bytes(("sep=;\n" + table("It is café", count=4)).encode("utf-16"))
    ended = sfnode("init", "train.csv", "--test", "test.csv", "--yes", *TINY).done()
    assert run().data.train == "train.csv"
    assert [row["text"] for row in rows(run().data.test)][:1] == ["It is café no. 0"]
    assert "Is measured on 4 more" in ended.out


def test_nothing_doubtful_is_taken_without_a_look_at_it(sfnode: Run, answers: Answers) -> None:
    lines = "".join(f"It is lost no. {n};{'ab'[n % 2]};{'xyz'[n % 3]}\n" for n in range(40))
    Path("two.csv").write_text(f"text;topic;category\n{lines}")
    refused = sfnode("init", "two.csv", "--yes", *TINY)
    assert "SF010: what is to be learnt from two.csv is not plain: category and topic may say" in refused.err
    assert "--label COLUMN" in refused.err
    assert not Path("run.toml").exists()
    assert sfnode("init", "two.csv", "--yes", "--label", "topic", *TINY).status == 0
    answers("")
    assert sfnode("init", "two.csv", "--force", *TINY).status == 0
    assert run().task.label_field == "category"


def test_rows_that_only_lack_something_are_left_out_unasked_while_they_are_few(sfnode: Run) -> None:
    Path("gaps.csv").write_text(table("It is lost") + "It has no label;\n;a\n;\n")
    ended = sfnode("init", "gaps.csv", "--yes", *TINY).done()
    assert lines(ended.out)["2 rows do not fit"].startswith("left out: line 42: 'label' is empty; line 43")
    assert "Left out: 2 of the 42 rows of gaps.csv" in ended.out
    Path("more.csv").write_text(table("It is lost") + "It has no label;\n" * 40)
    sfnode("init", "more.csv", "--yes", "--force", *TINY).failed("40 of the 80 rows of more.csv are bad")


def test_labels_that_look_alike_are_one_class_unless_somebody_says_no(sfnode: Run, answers: Answers) -> None:
    typed = table("It is lost", names=["Billing", "Delivery"]) + "It is late;biling\nIt is so;BILLING\n"
    Path("typed.csv").write_text(typed)
    ended = sfnode("init", "typed.csv", "--yes", *TINY).done()
    assert "BILLING is Billing, biling is Billing" in ended.out
    assert [*run().task.verbalizer] == ["Billing", "Delivery"]
    assert {row["label"] for row in rows(run().data.train)} == {"Billing", "Delivery"}
    answers("11", "no", "")
    assert sfnode("init", "typed.csv", "--force", *TINY).status == 0
    assert len(run().task.verbalizer) == 4


def test_a_run_is_called_what_comes_nearest_to_its_name(sfnode: Run, answers: Answers) -> None:
    named = ("--yes", "--skip-bad-rows", "--set", "name=Support Tickets (Größe)")
    assert sfnode("init", "tickets.csv", *named, *TINY).status == 0
    assert run().name == "Support-Tickets-Grosse"
    assert "SF010: '?!' is no name of a run" in sfnode("init", "tickets.csv", "--set", "name=?!", *TINY).err
    answers("9", "Mein Lauf", "name=Noch einer", "q")
    shown = lines(sfnode("init", "tickets.csv", "--force", *TINY).out)
    assert shown["Name of the run"] == "Noch-einer"


def test_whether_others_can_read_the_rows_is_asked_before(sfnode: Run, answers: Answers) -> None:
    answers("11", "nobody", "")
    ended = sfnode("init", "tickets.csv", *TINY).done()
    assert lines(ended.out)["Who can read all rows?"] == "nobody else: others train on rows of their own"
    assert not run().data.digests
    private = sfnode("init", "tickets.csv", "--private", "--force", *TINY)
    assert lines(private.out)["Who can read all rows?"].startswith("nobody else")


def test_a_cell_with_ends_of_lines_is_one_line(sfnode: Run) -> None:
    Path("lines.csv").write_text("text,label\n" + '"It is\r\nlost",a\n"It was\rthere",b\n' * 10, newline="")
    ended = sfnode("init", "lines.csv", *TINY)
    assert "It is lost" in ended.out
    assert "\\r" not in ended.out


def test_a_table_with_other_columns_lacks_them_and_is_not_full_of_bad_rows(sfnode: Run) -> None:
    Path("other.csv").write_text(table("It is lost", "mood"))
    ended = sfnode("init", "tickets.csv", "--test", "other.csv", "--yes", "--skip-bad-rows", *TINY)
    assert "other.csv has no column subject, body, category; it has text, mood" in ended.err


# -- rows that say little --------------------------------------------------------------------------------


def wrote(name: str, found: list[tuple[str, str]]) -> None:
    Path(name).write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in found))


def test_test_rows_that_are_trained_on_are_counted(sfnode: Run) -> None:
    wrote("same.csv", [(f"the same text {n % 2}", "ab"[n % 2]) for n in range(240)])
    ended = sfnode("init", "same.csv", "--yes", *TINY)
    assert "Warning: 48 of the 48 test rows have the text of a row that is trained on" in ended.out


def test_also_those_of_a_file_of_their_own(sfnode: Run) -> None:
    wrote("train.csv", [(f"a text no. {n}", "ab"[n % 2]) for n in range(40)])
    wrote("test.csv", [(f"A text  no. {n}", "ab"[n % 2]) for n in range(30, 50)])
    ended = sfnode("init", "train.csv", "--test", "test.csv", "--yes", *TINY).done()
    counted = re.search(r"Warning: (\d+) of the 20 test rows have the text", ended.out)
    assert counted
    assert 1 <= int(counted[1]) <= 10, "some of the ten validate"


def test_a_class_with_too_few_test_rows_is_named(sfnode: Run) -> None:
    wrote("rare.csv", [(f"a text no. {n}", "b" if n % 48 == 3 else "a") for n in range(388)])
    ended = sfnode("init", "rare.csv", "--yes", *TINY).done()
    assert "Warning: fewer than 5 test rows are of b (2): " in ended.out
    assert sum(row["label"] == "b" for row in rows(run().data.test)) == 2
