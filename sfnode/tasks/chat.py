"""Conversations as tokens, and which of them the assistant wrote in the text that a chat template makes.

Templates do not say where a turn begins or ends, so its place is found by rendering the conversation up to it
and comparing. This module knows tokenizers; it knows no task, no tensor and no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sfnode.errors import Code, UserError
from sfnode.tasks.prompts import ASSISTANT, Conversation, Message
from sfnode.tasks.rendering import TemplateRefusal, render
from sfnode.tasks.templates import common_prefix
from sfnode.tasks.tokenizer_calls import encode_with_places


class Tokens(NamedTuple):
    """A conversation in tokens."""

    ids: list[int]
    said: list[int]
    """Indices in `ids` of the assistant's tokens."""


def tokenise(tokenizer: Any, conversation: Conversation) -> Tokens:
    """Tokenise a conversation. Raises UserError MODEL_UNSUPPORTED, or DATA_MALFORMED if the template refuses.

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
    return Tokens(ids, said)


def prompt(tokenizer: Any, messages: Sequence[Message]) -> str:
    """Return a conversation as text that the assistant's next turn follows, without the token that begins
    every text. Raises UserError as `tokenise`."""
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
    """Yield where in the text the assistant's turns begin and end, the mark at their end included.

    A turn that opens the conversation answers nobody and is left out.
    """
    end = 0
    for number, message in enumerate(messages):
        if number and message.role == ASSISTANT:
            before = _rendered(tokenizer, messages[:number], add_generation_prompt=True)
            after = _rendered(tokenizer, messages[: number + 1])
            start, end = _span(whole, before, after, message.content.strip(), end)
            yield start, end


def _span(whole: str, before: str, after: str, said: str, earliest: int) -> tuple[int, int]:
    """Return where a turn begins and ends: where the text before it ends, and where the text up to it ends.

    Some templates render earlier turns differently when more follows (they leave reasoning out, or end the
    last turn with another mark). Then the texts differ somewhere, and the message itself shows the place.
    """
    start, end = max(common_prefix(before, whole), earliest), common_prefix(after, whole)
    if start < len(before):
        start = max(whole.find(said, start), start)
    if end < len(after):
        place = whole.find(said, start)
        mark = after.rpartition(said)[2]
        end = place + len(said) if place >= 0 else end
        end += common_prefix(mark, whole[end:])
    return start, max(start, end)


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
    except (TemplateRefusal, ValueError) as error:  # ValueError: of several templates, none is for chats
        raise UserError(
            Code.DATA_MALFORMED,
            f"the model's chat template refuses the conversation {opening(messages)}: {error}",
            "Leave such conversations out of the data, or correct the order and the roles of their messages.",
        ) from error


def opening(messages: Sequence[Message]) -> str:
    """Return words by which a user recognises a conversation."""
    return f"that begins with {messages[0].content[:60]!r}"
