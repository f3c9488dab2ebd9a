"""A row that the tokenizer cannot encode is left out wherever it is met, and said once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from sfnode.bounded_process import BoundedProcess
from sfnode.errors import Code, UserError
from sfnode.manifest.task import Task
from sfnode.tasks import chat, fitting
from sfnode.tasks.dataset import load_rows
from sfnode.tasks.encoding import encode
from sfnode.tasks.fitting import BROKEN, Fitting, RowExamination
from sfnode.tasks.mini_batches import Shard
from sfprotocol.seeds import update_seeds
from tests.refusals import refused
from tests.tasks.test_chat import CHAT, STRICT, talk
from tests.tasks.test_chat import tokenizer as talking
from tests.tasks.test_encoding import tokenizer, words_of

LONG = " ".join(["film"] * 40)
ANSWERS = Task(kind="completion", template="{q}", completion="{a}", max_tokens=16)
QUESTIONS = [{"q": f"a {word} film", "a": "bad"} for word in ("good", "slow", "dull")]
SEEDS = [int(seed) for seed in update_seeds(7, 0, 20)]


def asked(rows: list[Any]) -> list[Any]:
    """Those of some rows that fit."""
    return Fitting(ANSWERS, tokenizer()).of(rows)


def test_an_answer_that_is_longer_than_a_sequence_does_not_fit() -> None:
    assert asked([*QUESTIONS, {"q": "a film", "a": LONG}]) == QUESTIONS


def test_a_long_question_fits_as_it_loses_its_beginning() -> None:
    assert len(asked([{"q": LONG, "a": "bad"}])) == 1


def test_a_conversation_that_the_template_refuses_does_not_fit() -> None:
    rows = [talk("be kind", "hi", "ho", roles=("system", "user", "assistant")), talk("hi", "ho")]
    assert Fitting(CHAT, talking(STRICT)).of(rows) == rows[1:]


def test_where_none_fits_the_error_says_why() -> None:
    with pytest.raises(UserError, match="cannot be predicted within max_tokens = 16"):
        asked([{"q": "a film", "a": LONG}])


def test_it_is_said_once_and_escaped(caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"q": "a film", "a": f"\x1b[31m{n} {LONG}"} for n in range(3)]
    with caplog.at_level(logging.WARNING):
        assert asked([*QUESTIONS, *rows]) == QUESTIONS
    (record,) = caplog.records
    assert "a row is left out, and so are others like it: the answer" in record.getMessage()
    assert "\x1b" not in record.getMessage()


def test_a_model_whose_template_breaks_its_bounds_is_not_taken_for_bad_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chat, "PROCESS", BoundedProcess(chat.PROGRAM, 0.2, chat.MEMORY))
    monkeypatch.setattr(chat.render, "__defaults__", (chat.PROCESS,))
    endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    examined = Fitting(CHAT, talking(endless))
    rows = [talk(f"hi {n}", "ho") for n in range(BROKEN + 2)]
    assert not any(examined.fits(row) for row in rows[:BROKEN])
    with refused(Code.MODEL_UNSAFE):
        examined.fits(rows[BROKEN])


def test_a_mini_batch_has_the_next_row_in_its_place_the_same_on_every_node() -> None:
    """SPEC T3."""
    bad = {"q": "a film", "a": LONG}
    rows = [QUESTIONS[0], bad, bad, QUESTIONS[1], QUESTIONS[2], bad]
    mended = [QUESTIONS[0], QUESTIONS[1], QUESTIONS[1], QUESTIONS[1], QUESTIONS[2], QUESTIONS[0]]
    for seed in SEEDS:
        drawn, other = (Shard(ANSWERS, tokenizer(), some, 3).mini_batch(seed) for some in (rows, mended))
        assert words_of(drawn) == words_of(other)
    every = list(Shard(ANSWERS, tokenizer(), rows, 3).encoded(4))
    assert [words for one in every for words in words_of(one)] == words_of(
        encode(ANSWERS, tokenizer(), mended)
    )


def test_a_balanced_mini_batch_has_one_of_the_same_class(monkeypatch: pytest.MonkeyPatch) -> None:
    two = Task(
        kind="classification", template="{q}", verbalizer={"0": "bad", "1": "good"}, label_field="a",
        loss="centred",
    )  # fmt: skip
    rows = [{"q": word, "a": str(n % 2)} for n, word in enumerate(("film", "slow", "dull", "story"))]
    monkeypatch.setattr(Fitting, "fits", lambda _, row: row["q"] != "film")
    for seed in SEEDS:
        drawn = Shard(two, tokenizer(), rows, 2).draw(seed)[0]
        assert {row["q"] for row in drawn if row["a"] == "0"} == {"dull"}


def test_init_names_the_line_of_a_row_that_cannot_be_encoded(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    lines = [f"{row['q']},{row['a']}" for row in QUESTIONS]
    file.write_text("\n".join(["q,a", *lines, f"a film,{LONG}"]))
    assert len(load_rows(str(file), ANSWERS)) == 4
    told: list[tuple[int, int]] = []
    examine = RowExamination(Fitting(ANSWERS, tokenizer()), lambda done, total: told.append((done, total)))
    with pytest.raises(UserError, match=r"line 5: the answer .* cannot be predicted") as caught:
        load_rows(str(file), ANSWERS, examine=examine)
    assert "--skip-bad-rows" in caught.value.fix
    assert told == [(number, 4) for number in (1, 2, 3, 4)]


def test_its_time_is_bounded_and_what_was_not_read_is_counted() -> None:
    now = [0.0]
    examine = RowExamination(Fitting(ANSWERS, tokenizer()), clock=lambda: now[0])
    bad = {"q": "a film", "a": LONG}
    assert examine(bad, 1, 2)
    now[0] = fitting.SECONDS
    assert examine(bad, 1, 2), "what is known stays known"
    assert not examine({"q": "the film", "a": LONG}, 2, 2)
    assert examine.unread == 1
