"""What a causal LM reads for one question of the ``labels`` engine, and the texts a caller cannot forge. Pure.

The layout is granite-switch-decision's (contract/granite-switch-decision.md; wire/decisions.md C3 to C9): two user
turns, the first ``State:`` and the state, the second the invocation marker, the question and its lettered options.
Another layout is another function of :func:`render`'s shape, named by the setting LABELS_RENDERER.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from scorer.engines.questions import Options
from shared.jsonio import as_text

__all__ = ["MOST_LABELS", "Asked", "Escape", "Prompt", "breakable", "candidates", "plain", "render", "render_one_turn"]

#: Options of one question, as in Jev's and OpenAI's interfaces.
MOST_LABELS = 255
#: WORD JOINER: invisible, of no width, and in no control token.
_JOINER = "⁠"


class Asked(NamedTuple):
    """One question, its texts escaped already: ``options`` are pairs of value and description ("" for none), in the
    order asked; a noul's are ``no`` and ``yes``."""

    type: str
    instructions: str
    options: tuple[tuple[str, str], ...]


class Prompt(NamedTuple):
    """Messages for the chat template, and the label of each option: texts that are one token each, all different."""

    messages: list[dict[str, str]]
    labels: list[str]


def render(state: str, asked: Asked, letters: Sequence[str], marker: str) -> Prompt:
    """The default layout. ``letters`` are at least as many single-token labels as there are options, ``marker`` is ""
    where none is set.

    The sides of a noul are ``No / false`` and ``Yes / true`` (C6), each followed by its description where the caller
    gave one; any other option is its description, or else its value (C7).
    """
    labels = list(letters[: len(asked.options)])
    lines = [f"{label}: {_shown(asked.type, *option)}" for label, option in zip(labels, asked.options, strict=True)]
    question = "\n".join(line for line in (marker, asked.instructions, *lines) if line)
    return Prompt([{"role": "user", "content": f"State:\n{state}"}, {"role": "user", "content": question}], labels)


def render_one_turn(state: str, asked: Asked, letters: Sequence[str], marker: str) -> Prompt:
    """The same in one user turn, for a chat template that wants user and assistant to take turns."""
    (first, second), labels = render(state, asked, letters, marker)
    return Prompt([{"role": "user", "content": f"{first['content']}\n\n{second['content']}"}], labels)


def _shown(kind: str, value: str, description: str) -> str:
    if kind != "noul":
        return description or value
    side = "Yes / true" if value == "yes" else "No / false"
    return f"{side}: {description}" if description else side


def plain(instructions: Any, options: Options, escape: Escape) -> Asked:
    """A checked question as a renderer takes it: every text a string, escaped."""
    pairs = zip(options.labels, options.descriptions, strict=True)
    return Asked(
        options.type,
        escape(as_text(instructions)),
        tuple((escape(label), escape(as_text(description))) for label, description in pairs),
    )


def candidates() -> Iterator[str]:
    """A to Z, then AA to ZZ (C4)."""
    yield from string.ascii_uppercase
    yield from (first + second for first in string.ascii_uppercase for second in string.ascii_uppercase)


def breakable(text: str) -> bool:
    """Whether U+2060 behind its first character makes another text of it: not of one character alone, and not of the
    joiner itself."""
    return len(text) > 1 and _JOINER not in text


class Escape:
    """Breaks control tokens and the marker in a caller's text with U+2060 behind their first character, so that the
    text can neither forge a turn nor move the point where an adapter starts (C9). Texts that are not
    :func:`breakable` are left out."""

    def __init__(self, forbidden: Iterable[str]) -> None:
        texts = sorted(set(filter(breakable, forbidden)), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, texts))) if texts else None

    def __call__(self, text: str) -> str:
        """The text without any of the forbidden ones."""
        if self._pattern is not None:
            # Again, because a second one may share its characters with the first: of "<a><b>" where "><" is one too.
            while self._pattern.search(text):
                text = self._pattern.sub(lambda match: f"{match[0][0]}{_JOINER}{match[0][1:]}", text)
        return text
