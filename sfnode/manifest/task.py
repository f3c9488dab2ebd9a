"""The task of a run: the meaning of a row of its data, and the scoring of an answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from unicodedata import normalize

from pydantic import Field, field_validator, model_validator

from sfnode.manifest.sections import Section, sorted_keys

MAX_ANSWER_TOKENS = 4096
"""Maximum tokens of an answer of a reward run. Verifiers read at most this number of characters of an answer
(docs/verifiers.md)."""

LEAST_TEMPERATURE, MOST_TEMPERATURE = 1 / 64, 64.0
"""Bounds of a temperature that is not 0. At a lower temperature only the likeliest token would be drawn, and
at a higher one all tokens equally often."""

ANSWERS = 4
"""Number of answers that are drawn for each prompt of a mini-batch, and compared with each other (SPEC
T8)."""

READING = 1 / 3
"""Time for scoring a written answer at one more point (perturbed weights), as a share of the time for writing
it. On SmolLM2 scoring takes 0.19 CPU seconds, and writing 0.53 (docs/benchmarks.md)."""

MAX_STOPS, MAX_STOP = 8, 64
"""Maximum number of texts that end an answer, and maximum characters of each such text. An answer is searched
for these texts after every token."""

PRIOR_ONE = 1 << 16
"""Number that stands for one nat in a manifest's prior. The unit is exact in every programming language, and
finer than any measurement."""

MOST_PRIOR = (1 << 31) - 1
"""Maximum absolute value of an entry of a prior: 32,768 nats, more than the logarithm of any probability of
binary32."""


def composed(text: str) -> str:
    """Return a text in Unicode's normalisation form C, in which labels are compared (SPEC T2)."""
    return normalize("NFC", text)


class Task(Section):
    """Meaning of a row of data: `template` is the prompt, and an answer follows it.

    Braces name the fields of a row, `{field}` or `{field|filter}` (sfnode/tasks/templates.py lists the
    filters). A space separates prompt and answer, unless the prompt ends with white space or the answer
    begins with it.

    classification: `verbalizer` maps the row's label to the answer. sequence-classification: `template` is
    all the text, which `{separator}` may part in two. `verbalizer` maps the row's label to the name of a
    class. A classification head scores the classes, in the verbalizer's order. choice: the row brings its
    candidates (`candidates_field`). The answer is `completion` with `{candidate}` filled in. `label_field`
    has the right answer: its text, its index, or a list of texts. completion: the answer is `completion`.
    text: there is no answer, and the loss is on the whole of `template`. chat: `messages_field` holds a
    conversation, and the loss is on the assistant's messages. reward: the model writes the answer, of at most
    `answer_tokens` tokens and up to one of the texts `stop`. The loss is 1 minus the score that the
    `verifier` gives. Tokens are the likeliest ones, or drawn at a `temperature` (docs/rewards.md).

    `metric`: accuracy, f1 (macro-averaged, of a classification), or, if empty, the default of the kind.

    `loss`, for kinds with a verbalizer, is plain, centred or calibrated. Centred (SPEC T5): mini-batches are
    balanced, and means are subtracted from scores before these are compared. Calibrated: the `prior` is
    subtracted from the scores of each row. `prior` is the base model's prior over the answers, in the
    verbalizer's order and in units of 2^-16 nats. With a centred loss the prior serves nodes without public
    training rows, and may be empty.
    """

    kind: Literal[
        "classification", "sequence-classification", "choice", "completion", "text", "chat", "reward"
    ]
    template: str = ""
    label_field: str = "label"
    verbalizer: dict[str, str] = Field(default_factory=dict)
    candidates_field: str = ""
    completion: str = ""
    messages_field: str = Field(default="messages", min_length=1)
    metric: Literal["", "accuracy", "f1"] = ""
    max_tokens: int = Field(default=256, ge=8, le=65_536)
    loss: Literal["plain", "centred", "calibrated"] = "plain"
    prior: tuple[Annotated[int, Field(ge=-MOST_PRIOR, le=MOST_PRIOR)], ...] = ()
    verifier: dict[str, Any] = Field(default_factory=dict)
    """Verifier as `verifiers.specs` writes it, without keys that have their default."""
    answer_tokens: int = Field(default=0, ge=0, le=MAX_ANSWER_TOKENS)
    temperature: float = Field(default=0.0, ge=0, le=MOST_TEMPERATURE)
    stop: tuple[Annotated[str, Field(min_length=1, max_length=MAX_STOP)], ...] = Field(
        default=(), max_length=MAX_STOPS
    )

    @field_validator("verifier", mode="before")
    @classmethod
    def _as_written(cls, value: Any) -> Any:
        if not value:
            return {}
        from sfnode.verifiers import specs  # a tenth of a second, which other runs save

        return specs.read(value).model_dump(mode="json")

    @field_validator("verbalizer")
    @classmethod
    def _in_canonical_order(cls, value: dict[str, str]) -> dict[str, str]:
        # its order numbers the classes, so every node must have the same order (SPEC M2)
        found: dict[str, str] = sorted_keys(value)
        return found

    @property
    def labelled(self) -> bool:
        """Whether each row has one of the verbalizer's labels."""
        return self.kind in ("classification", "sequence-classification")

    @property
    def less_prior(self) -> bool:
        """Whether a prior over the answers is subtracted from their scores: the model's own, or the
        manifest's."""
        return self.loss != "plain"

    @property
    def is_rewarded(self) -> bool:
        """Whether the model writes answers and a program rewards them. Otherwise the rows have given
        answers."""
        return self.kind == "reward"

    @model_validator(mode="after")
    def _complete(self) -> Task:
        words = [composed(word.strip()) for word in self.verbalizer.values()]
        if not self.template and self.kind != "chat":
            raise ValueError(f"the task kind {self.kind} needs a template")
        if self.labelled and (len(set(words)) < max(2, len(words)) or "" in words):
            raise ValueError("a classification needs a verbalizer with two or more different words")
        if len({composed(label) for label in self.verbalizer}) < len(self.verbalizer):
            raise ValueError("two labels of the verbalizer differ in their Unicode normalisation only")
        if self.kind in ("choice", "completion") and not self.completion:
            raise ValueError(f"the task kind {self.kind} needs a completion")
        if self.kind == "choice" and not self.candidates_field:
            raise ValueError("the task kind choice needs a candidates_field")
        if self.loss == "centred" and not self.labelled:
            raise ValueError(f"the task kind {self.kind} has no classes whose scores could be centred")
        if self.prior and (self.loss == "plain" or len(self.prior) != len(self.verbalizer)):
            raise ValueError("a prior has a number for each class of a task whose loss is not plain")
        if self.loss == "calibrated" and (not self.prior or self.kind != "classification"):
            raise ValueError("a calibrated loss is that of a classification in words, and has a prior")
        if self.metric and not self.labelled and (self.kind, self.metric) != ("choice", "accuracy"):
            raise ValueError(f"the task kind {self.kind} cannot be measured by {self.metric}")
        self._check_answers()
        return self

    def _check_answers(self) -> None:
        """Raise ValueError unless a reward run, and no other, has the fields for written answers."""
        if self.kind != "reward":
            if self.verifier or self.answer_tokens or self.temperature or self.stop:
                raise ValueError(f"the task kind {self.kind} has no answers that are written and verified")
            return
        if not self.verifier:
            raise ValueError("the task kind reward needs a verifier")
        if not 0 < self.answer_tokens < self.max_tokens:
            raise ValueError(
                "the task kind reward needs answer_tokens, fewer than the max_tokens of prompt and answer"
            )
        if 0 < self.temperature < LEAST_TEMPERATURE:
            raise ValueError(f"temperature is 0 or at least {LEAST_TEMPERATURE:g}")
