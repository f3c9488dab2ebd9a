"""Conversations as tokens, and the positions of those tokens that the assistant wrote.

Chat templates do not say where a turn begins or ends in the text. The position of a turn is found by
rendering only the part of the conversation up to the turn, and comparing the result with the whole text. This
module knows tokenizers; it knows no task, no tensor and no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sfnode.bounded_process import BoundedProcess
from sfnode.errors import Code, UserError
from sfnode.tasks.prompts import ASSISTANT, Conversation, Message
from sfnode.tasks.templates import common_prefix
from sfnode.tasks.tokenizer_calls import encode_with_places

SECONDS = 5.0
"""Maximum CPU time of one rendering, in seconds: thousands of times the usual CPU time. Unlike elapsed time,
CPU time does not depend on the machine's other load."""

MEMORY = 1 << 30
"""Maximum memory of the rendering process, in bytes: a hundred times the memory that the longest
conversations need."""

PROGRAM = "sfnode.tasks.template_process"

PROCESS = BoundedProcess(PROGRAM, SECONDS, MEMORY)
"""The process that renders all chat templates for this process."""


# -- templates, in a process of their own --------------------------------------------------------------


class TemplateRefusal(Exception):  # noqa: N818 (an answer, not a fault)
    """Error for a template that cannot be parsed, or that refuses the conversation. The text of the error is
    the reason."""


def render(template: str, variables: dict[str, Any], process: BoundedProcess = PROCESS) -> str:
    """Return the text that a template renders from `variables`, whose values are JSON values.

    Raises TemplateRefusal, and UserError MODEL_UNSAFE for a template that exceeds a bound on its time, its
    memory or the length of its text.
    """
    reply = process.ask([template, variables])
    if "refused" in reply:
        raise TemplateRefusal(reply["refused"])
    if "broke" in reply:
        raise UserError(
            Code.MODEL_UNSAFE,
            f"the model's chat template cannot be used: {reply['broke']}",
            "Take another model, or put a chat template that you trust into a copy of this one "
            "(chat_template.jinja).",
        )
    return str(reply["text"])


PRIVATE = range(0xE000, 0xF900)
"""Unicode's characters for private use. A character of these that does not occur in a text can mark the place
of a message in the text."""


def tokenise(tokenizer: Any, conversation: Conversation) -> tuple[list[int], list[int]]:
    """Return the tokens of a conversation, and the indices of those that the assistant wrote. Raises
    UserError MODEL_UNSUPPORTED, or DATA_MALFORMED if the template refuses the conversation.

    The template writes the special tokens, so the tokenizer adds none.
    """
    require_template(tokenizer)
    messages = conversation.messages
    whole = _rendered(tokenizer, messages)
    ids, places = encode_with_places(tokenizer, whole)
    inside = [False] * len(whole)
    for start, end in _spans(tokenizer, messages, whole):
        inside[start:end] = [True] * (end - start)
    said = [n for n, (start, end) in enumerate(places) if any(inside[start:end])]
    return ids, said


def prompt(tokenizer: Any, messages: Sequence[Message]) -> str:
    """Return the text of a conversation after which the assistant's next turn begins, without the
    beginning-of-text token. Raises UserError as `tokenise`."""
    require_template(tokenizer)
    return _rendered(tokenizer, messages, add_generation_prompt=True).removeprefix(tokenizer.bos_token or "")


def require_template(tokenizer: Any) -> None:
    """Raise UserError MODEL_UNSUPPORTED if the tokenizer has no usable chat template."""
    if not tokenizer.chat_template:
        raise UserError(
            Code.MODEL_UNSUPPORTED,
            "the model's tokenizer has no chat template, so nobody knows how it formats a conversation",
            "Take a model that was made for chat, put a chat_template.jinja into the model's folder, or "
            "describe the task as one of kind completion.",
        )
    if not tokenizer.is_fast:
        raise UserError(
            Code.MODEL_UNSUPPORTED,
            "the model's tokenizer does not say which token stands for which text, as a chat task needs",
            "Take a model with a tokenizer.json.",
        )


def _spans(tokenizer: Any, messages: Sequence[Message], whole: str) -> Iterator[tuple[int, int]]:
    """Yield the beginning and end of each of the assistant's turns in the text. A turn includes the
    end-of-turn mark.

    A turn of the assistant that opens the conversation is left out, because it has no prompt. Some templates
    render a turn differently if other turns follow: they leave out its reasoning, or end the last turn with
    another mark. For such a template, the rendered beginning of the conversation is no prefix of the whole
    text, and `_place` finds the turn.
    """
    for number, message in enumerate(messages):
        if number and message.role == ASSISTANT:
            before = _rendered(tokenizer, messages[:number], add_generation_prompt=True)
            after = _rendered(tokenizer, messages[: number + 1])
            begun, ended = whole.startswith(before), whole.startswith(after)
            start, end = len(before), len(after)
            if not (begun and ended and message.content.strip() in whole[start:end]):
                first, last = _place(tokenizer, messages, number, whole)
                start, end = start if begun else first, end if ended else last
            yield start, end


def _place(tokenizer: Any, messages: Sequence[Message], number: int, whole: str) -> tuple[int, int]:
    """Return the positions in the text where the kept words of a message begin, and where the end-of-turn
    mark after them ends. The kept words are those that the template does not leave out.

    The positions are found by rendering the conversation with one character instead of the message. Raises
    UserError DATA_MALFORMED if this does not show the positions, or if the template keeps no words.
    """
    stand_in = next(letter for letter in map(chr, PRIVATE) if letter not in whole)
    instead = messages[number]._replace(content=stand_in)
    before, _, rest = _rendered(tokenizer, [*messages[:number], instead, *messages[number + 1 :]]).partition(
        stand_in
    )
    start, end = len(before), len(whole) - len(rest)
    if not (whole.startswith(before) and whole.endswith(rest) and whole[start:end].strip()):
        raise UserError(
            Code.DATA_MALFORMED,
            f"the model's chat template leaves nothing that could be learnt of message {number + 1} of the "
            f"conversation {opening(messages)}",
            "Such templates leave out the reasoning of earlier turns: give each answer some text after it, "
            "or leave such conversations out of the data.",
        )
    mark = _rendered(tokenizer, [*messages[:number], instead]).partition(stand_in)[2]
    return start, end + common_prefix(mark, rest)


def _rendered(tokenizer: Any, messages: Sequence[Message], *, add_generation_prompt: bool = False) -> str:
    variables = {
        **tokenizer.special_tokens_map,
        "messages": [message._asdict() for message in messages],
        "tools": None,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
    }
    try:
        return render(tokenizer.get_chat_template(), variables)
    except (TemplateRefusal, ValueError) as error:  # ValueError: several templates, none for chats
        raise UserError(
            Code.DATA_MALFORMED,
            f"the model's chat template refuses the conversation {opening(messages)}: {error}",
            "Leave such conversations out of the data, or correct the order and the roles of their messages.",
        ) from error


def opening(messages: Sequence[Message]) -> str:
    """Return the first words of a conversation, so that a user can recognise it."""
    return f"that begins with {messages[0].content[:60]!r}"
