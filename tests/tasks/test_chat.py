"""Tests of chat tasks: the loss is on the assistant's tokens, whatever the template."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sfnode.errors import Code, UserError
from sfnode.manifest.task import Task
from sfnode.tasks.dataset import load_rows
from sfnode.tasks.encoding import Encoded, Scored, encode, evaluate
from tests.refusals import refused

CHAT = Task(kind="chat")
MARKED = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ENDING = (
    "{% for m in messages %}"
    "{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]{% else %} {{ m.content | trim }}"
    "{% if loop.last %} </s>{% endif %}{% endif %}{% endfor %}"
)
"""Template that trims content, marks the end of the last turn only, and has no generation prompt."""
FORGETFUL = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}"
    "{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>{% endif %}"
)
"""Template that renders earlier turns differently: it leaves out their reasoning."""
REASONING = (
    "{% set told = namespace(last=0) %}"
    "{% for m in messages if m.role == 'user' %}{% set told.last = m.content %}{% endfor %}"
    "{% set told.over = false %}{% for m in messages %}"
    "{% if m.content == told.last %}{% set told.over = true %}{% endif %}"
    "{% set parts = m.content.split('</think>') %}"
    "<|{{ m.role }}|>{% if parts | length > 1 and told.over %}<think>\n"
    "{{ parts[0].split('<think>')[1] | trim }}\n</think>\n\n{% endif %}{{ parts[-1] | trim }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Template that leaves out text before </think>, except in the answer to the last question, as Qwen3's
does."""
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + MARKED


@cache
def tokenizer(template: str | None) -> Any:
    """Return a tokenizer with a token for every byte and every mark, so that tokens are easily read as
    text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_pairs = Tokenizer(models.BPE({letter: n for n, letter in enumerate(alphabet)}, []))
    byte_pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_pairs.decoder = decoders.ByteLevel()
    build: Any = PreTrainedTokenizerFast
    marks = ["<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<think>", "</think>", "[INST]", "[/INST]"]
    made = build(tokenizer_object=byte_pairs, pad_token="<pad>", bos_token="<s>", eos_token="</s>")
    made.add_special_tokens({"additional_special_tokens": marks})
    made.chat_template = template
    return made


def talk(*said: str, roles: tuple[str, ...] = ("user", "assistant")) -> dict[str, Any]:
    """Return a row in which the roles take turns."""
    turns = zip(roles * len(said), said, strict=False)
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def learnt(row: dict[str, Any], template: str = MARKED, task: Task = CHAT) -> str:
    """Return the text of the tokens that the loss is on."""
    text: str = tokenizer(template).decode(encode(task, tokenizer(template), [row]).targets)
    return text


def read(encoded: Encoded, template: str = MARKED) -> list[str]:
    """Return the sequences as text, without padding."""
    pairs = zip(encoded.input_ids, encoded.attention_mask.bool(), strict=True)
    return [tokenizer(template).decode(ids[mask]) for ids, mask in pairs]


def test_the_assistants_turns_are_learnt_with_the_marks_that_end_them_and_nothing_else() -> None:
    assert learnt(talk("Two?", "Four.", "Sure?", "Yes.")) == "Four.<|end|>\nYes.<|end|>\n"
    system = talk("Be brief.", "Two?", "Four.", roles=("system", "user", "assistant"))
    assert learnt(system) == "Four.<|end|>\n"


def test_a_whole_conversation_is_one_sequence_as_the_template_words_it() -> None:
    encoded = encode(CHAT, tokenizer(MARKED), [talk("Two?", "Four.", "Sure?", "Yes."), talk("a", "b")])
    assert read(encoded) == [
        "<|user|>Two?<|end|>\n<|assistant|>Four.<|end|>\n<|user|>Sure?<|end|>\n<|assistant|>Yes.<|end|>",
        "<|user|>a<|end|>\n<|assistant|>b<|end|>",
    ]
    last = encoded.attention_mask.sum(1)[encoded.sequences] - 1  # (P,)
    fed = encoded.columns < last  # what the last column predicts is not fed in
    following = encoded.input_ids[encoded.sequences[fed], encoded.columns[fed] + 1]
    assert following.tolist() == encoded.targets[fed].tolist()


def test_what_comes_after_the_last_answer_is_not_even_read() -> None:
    (text,) = read(encode(CHAT, tokenizer(MARKED), [talk("Two?", "Four.", "Thank you very much.")]))
    assert text == "<|user|>Two?<|end|>\n<|assistant|>Four.<|end|>"


def test_an_opening_of_the_assistants_is_context_for_it_answers_nobody() -> None:
    row = talk("Hello.", "Two?", "Four.", roles=("assistant", "user"))
    assert learnt({"messages": [*row["messages"][:2], {"role": "assistant", "content": "4"}]}) == "4<|end|>\n"


def test_a_mark_that_only_the_last_turn_has_is_learnt_there() -> None:
    assert learnt(talk("Two?", " Four. ", "Sure?", "Yes."), ENDING) == " Four. Yes. </s>"


def test_a_turn_that_is_worded_otherwise_when_more_follows_is_found_all_the_same() -> None:
    row = talk("Two?", "Four.", "Sure?", "Yes.")
    assert learnt(row, FORGETFUL) == "Four.<|end|>\n</think>Yes.<|end|>\n"


def test_of_a_turn_whose_reasoning_is_left_out_the_rest_is_learnt() -> None:
    row = talk("Two?", "<think>1 + 1</think>\n\nFour.", "Sure?", "<think>yes</think>Yes.", "Why?", "So.")
    assert learnt(row, REASONING) == "Four.<|end|>\nYes.<|end|>\nSo.<|end|>\n"
    assert learnt({"messages": row["messages"][:4]}, REASONING) == (
        "Four.<|end|>\n<think>\nyes\n</think>\n\nYes.<|end|>\n"
    )


def test_what_a_template_makes_of_a_turn_is_found_where_it_is() -> None:
    """The turn's text also stands elsewhere, and the template changes it."""
    shouting = MARKED.replace("m.content", "(m.content | upper if not loop.last else m.content)")
    assert learnt(talk("YES", "yes", "YES", "no"), shouting) == "YES<|end|>\nno<|end|>\n"


@pytest.mark.parametrize(
    "row",
    [talk("Two?", "<think>Four.</think>", "Sure?", "Yes."), talk("Two?", "<think>x</think> ", "b", "c")],
)
def test_a_turn_of_which_nothing_is_left_is_an_error_with_the_row(row: dict[str, Any]) -> None:
    said = "leaves nothing that could be learnt of message 2 of the conversation that begins with 'Two?'"
    with refused(Code.DATA_MALFORMED, said):
        encode(CHAT, tokenizer(REASONING), [row])


def test_an_answer_that_repeats_the_question_is_told_from_it() -> None:
    assert learnt(talk("Four.", "Four.", "Four.", "Four."), FORGETFUL) == (
        "Four.<|end|>\n</think>Four.<|end|>\n"
    )


@given(said=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=2, max_size=6))
def test_whatever_is_said_and_in_any_script_the_assistants_part_is_learnt(said: list[str]) -> None:
    said = [f"{text}." for text in said]
    expected = "".join(f"{text}<|end|>\n" for text in said[1::2])
    assert learnt(talk(*said), task=CHAT.model_copy(update={"max_tokens": 60_000})) == expected


def test_a_long_conversation_loses_its_end() -> None:
    task = CHAT.model_copy(update={"max_tokens": 14})
    row = talk("Two?", "Four is the answer.")
    (text,) = read(encode(task, tokenizer(MARKED), [row]))
    assert text == "<|user|>Two?<|end|>\n<|assistant|>Four i"[: len(text)]
    assert learnt(row, task=task) == "Four i"


def test_a_conversation_whose_first_answer_does_not_fit_is_an_error_that_quotes_its_beginning() -> None:
    task = CHAT.model_copy(update={"max_tokens": 8})
    with refused(Code.DATA_MALFORMED, "begins with 'Two and two?' cannot be predicted within"):
        encode(task, tokenizer(MARKED), [talk("Two and two?", "Four.")])


def test_a_tokenizer_without_a_chat_template_is_refused_with_a_way_out() -> None:
    with refused(Code.MODEL_UNSUPPORTED, "no chat template", fix="chat_template.jinja"):
        encode(CHAT, tokenizer(None), [talk("Two?", "Four.")])


def test_what_the_template_refuses_is_an_error_with_its_reason_and_the_conversation() -> None:
    row = talk("Be brief.", "Two?", "Four.", roles=("system", "user", "assistant"))
    with pytest.raises(UserError, match=r"refuses the conversation .*'Be brief.': no system role") as caught:
        encode(CHAT, tokenizer(STRICT), [row])
    assert caught.value.code == Code.DATA_MALFORMED


def test_no_template_learns_what_day_it_is() -> None:
    """Nodes must get the same text from a row on any day."""
    dated = "\n  {% set day %}{{ strftime_now('%d %b %Y') }}{% endset %}\n{{ day }}" + MARKED
    (text,) = read(encode(CHAT, tokenizer(dated), [talk("Two?", "Four.")]), dated)
    assert text.startswith("\n01 Jan 2025<|user|>Two?")


def test_perplexity_is_that_of_the_assistants_tokens() -> None:
    # "no" and "<|end|>", "\n": probabilities 1/2, 1/4, 1/8, 1/8: log 2 * (1 + 2 + 3 + 3) over 4 tokens.
    chances = {"n": 1 / 2, "o": 1 / 4, "<|end|>": 1 / 8, "\n": 1 / 8}

    def forward(encoded: Encoded) -> Scored:
        words = [tokenizer(MARKED).decode(token) for token in encoded.targets]
        log_probs = torch.tensor([math.log(chances[word]) for word in words])
        return Scored(log_probs, log_probs > -1)

    measured = evaluate(CHAT, tokenizer(MARKED), [talk("Two?", "no"), talk("Sure?", "no")], forward, 1)
    assert (measured.metric, measured.count) == ("perplexity", 2)
    assert measured.value == pytest.approx(2 ** (9 / 4))
    assert measured.loss == pytest.approx(math.log(2) * 9 / 4)
    assert measured.low == pytest.approx(measured.value) == measured.high  # the rows are alike


USER = {"role": "user", "content": "Two?"}
FOUR = {"role": "assistant", "content": "Four."}
MALFORMED: list[tuple[Any, str]] = [
    ("hello", "'messages' is not a list of messages"),
    ([USER, "Four."], "'messages' has a message 2 that is no object with a role and a content"),
    ([USER, {"role": "assistant"}], "'messages' has a message 2 without a text as its content"),
    ([{"content": "Two?"}, FOUR], "'messages' has a message 1 without a text as its role"),
    ([USER, {**FOUR, "content": [{"type": "text"}]}], "has a message 2 without a text as its content"),
    ([USER, USER], "'messages' has no answer of the assistant's"),
    ([FOUR, USER], "'messages' has no answer of the assistant's"),
    ([], "'messages' has no answer of the assistant's"),
    ([USER, {**FOUR, "content": " "}], "there is no text to learn"),
    (None, "no 'messages'; the row has 'messages'"),
]


@pytest.mark.parametrize(("messages", "wrong"), MALFORMED)
def test_malformed_messages_are_named_with_file_and_line(tmp_path: Path, messages: Any, wrong: str) -> None:
    file = tmp_path / "talk.jsonl"
    rows = [{"messages": [USER, FOUR]}, {"messages": messages}]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    with refused(Code.DATA_MALFORMED, f"{file}, line 2: ", wrong):
        load_rows(str(file), CHAT)


def test_the_messages_may_be_in_another_field_and_may_be_counted(tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    rows = [{"talk": [USER, FOUR]}, {"talk": [USER, {**FOUR, "content": "Four it is."}]}]
    file.write_text("\n".join(json.dumps(row) for row in rows))
    task = Task(kind="chat", messages_field="talk")
    assert load_rows(str(file), task) == rows
    assert load_rows(str(file), task, min_words=3) == rows[1:]
    assert learnt(rows[0], task=task) == "Four.<|end|>\n"
