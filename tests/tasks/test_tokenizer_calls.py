"""A tokenizer is a stranger's program: it makes tokens as transformers does, or it is stopped."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import psutil
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer, CTRLTokenizer, PreTrainedTokenizerFast

from sfnode.errors import Code
from sfnode.tasks import tokenizer_calls
from sfnode.tasks.tokenizer_calls import decode, encode, encode_pair, encode_with_places
from tests.models.families import ENCODERS, FAMILIES, model_folder
from tests.models.hostile import LONG, NORMALISERS, SENTENCE, replace, sequence
from tests.refusals import refusal

TEXTS = ["the film was bright .", "", "a dull story , Ünd mehr", "<s> good good"]
PAIRS = [("the film was bright .",), ("a dull story", "is bad . " * 9), ("a slow film", "")]


def loaded(family: str) -> Any:
    return AutoTokenizer.from_pretrained(model_folder(family))


def python_tokenizer(folder: Path) -> Any:
    """A tokenizer that transformers has in Python only."""
    (folder / "vocab.json").write_text(json.dumps({"the": 0, "fi@@": 1, "lm": 2, "<unk>": 3}))
    (folder / "merges.txt").write_text("#version\nt h\nth e</w>\nf i\nl m</w>\n")
    return CTRLTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))


def hostile(**parts: Any) -> Any:
    """A tokenizer of words with these parts."""
    plain = Tokenizer(models.WordLevel({"the": 0, "film": 1, "<unk>": 2}, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend = Tokenizer.from_str(json.dumps(json.loads(plain.to_str()) | parts))
    build: Any = PreTrainedTokenizerFast
    return build(tokenizer_object=backend, unk_token="<unk>")


@pytest.mark.parametrize("family", ["opt", "qwen2", *ENCODERS])
def test_texts_become_the_tokens_that_transformers_makes_of_them(family: str) -> None:
    own = loaded(family)
    assert encode(own, TEXTS) == [own(text, add_special_tokens=False).input_ids for text in TEXTS]
    for text in TEXTS:
        wanted = own(text, add_special_tokens=False, return_offsets_mapping=True)
        assert encode_with_places(own, text) == (wanted.input_ids, wanted.offset_mapping)
    tokens = encode(own, TEXTS)
    assert decode(own, tokens) == [own.decode(ids, skip_special_tokens=True) for ids in tokens]


@pytest.mark.parametrize("family", [*ENCODERS, *FAMILIES[:1]])
@pytest.mark.parametrize("most", [6, 64])
@pytest.mark.parametrize("side", ["left", "right"])
def test_pairs_become_the_tokens_that_transformers_makes_of_them(family: str, most: int, side: str) -> None:
    own = loaded(family)
    own.truncation_side = side
    for pair in PAIRS:
        wanted = own(*pair, truncation=True, max_length=most)
        assert encode_pair(own, pair, most) == (wanted.input_ids, wanted.get("token_type_ids"))


def test_a_tokenizer_in_python_is_run_in_such_a_process_too(tmp_path: Path) -> None:
    own = python_tokenizer(tmp_path)
    texts = ["the film", "film the", "a"]
    tokens = encode(own, texts)
    assert tokens == [own(text, add_special_tokens=False).input_ids for text in texts]
    assert decode(own, tokens) == [own.decode(ids, skip_special_tokens=True) for ids in tokens]
    assert (
        encode_pair(own, ("the film", "film"), 4)[0]
        == own("the film", "film", truncation=True, max_length=4).input_ids
    )


def test_white_space_is_cleaned_up_where_transformers_does_so(tmp_path: Path) -> None:
    own = hostile()
    own.clean_up_tokenization_spaces = True
    own.add_tokens(["."])
    tokens = encode(own, ["the film ."])
    assert decode(own, tokens) == [own.decode(tokens[0], skip_special_tokens=True)] == ["the film."]


@pytest.mark.parametrize("name", NORMALISERS)
def test_a_rule_that_is_fine_for_all_texts_but_one_is_stopped_at_that_one(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_calls, "MEMORY", 256 << 20)
    own = hostile(normalizer=NORMALISERS[name])
    assert encode(own, ["the film"]) == [[0, 1]]
    error = refusal(lambda: encode(own, [SENTENCE]))
    assert error.code is Code.MODEL_UNSAFE
    assert "the text that begins with 'the aaaa" in error.what
    assert encode(own, ["the film"]) == [[0, 1]]


@pytest.mark.parametrize("part", ["normalizer", "pre_tokenizer"])
def test_an_expression_that_takes_hours_is_stopped(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_calls, "SECONDS", 1.0)
    rule = {"behavior": "Isolated", "invert": False} | replace("b", Regex=LONG)
    own = hostile(**{part: rule | {"type": "Replace" if part == "normalizer" else "Split"}})
    error = refusal(lambda: encode(own, ["a" * 100_000]))
    assert error.code is Code.MODEL_UNSAFE
    assert "it takes more time than it may" in error.what


def test_a_rule_for_answers_is_stopped_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_calls, "MEMORY", 256 << 20)
    own = hostile(decoder=sequence([replace("l" * 50, String="l")] * 6, "decoders"))
    assert decode(own, [[0]]) == ["the"]
    error = refusal(lambda: decode(own, [[0, 1]]))
    assert error.code is Code.MODEL_UNSAFE
    assert "it takes more memory than it may" in error.what


def test_more_text_than_any_model_reads_is_refused() -> None:
    own = hostile(decoder=sequence([replace("l" * 50, String="l")] * 4, "decoders"))
    assert "it makes more than" in refusal(lambda: decode(own, [[0, 1]])).what


def test_padding_that_a_tokenizer_asks_for_is_not_added() -> None:
    fixed = {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None}
    own = hostile(padding=fixed | {"pad_id": 0, "pad_type_id": 0, "pad_token": "the"})
    assert encode(own, ["the film"]) == [[0, 1]]


def test_a_text_that_is_none_is_the_rows_fault_and_not_the_models() -> None:
    error = refusal(lambda: encode(loaded("opt"), ["the \ud800"]))
    assert error.code is Code.DATA_MALFORMED


def test_a_tokenizer_that_is_gone_leaves_no_process() -> None:
    own = hostile()
    encode(own, ["the film"])
    process = psutil.Process(tokenizer_calls._process_of(own)._process.pid)  # type: ignore[union-attr]
    del own
    gc.collect()
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
