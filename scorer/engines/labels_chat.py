"""A tokenizer and its chat template, as the ``labels`` engine needs them: prompts, control tokens, label ids, and where
prompts of one state may be parted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

__all__ = ["Chat", "common"]

#: Ends of a state before which a tokenizer could join over the border of a turn.
_ENDS = ("word", "word ", "line\n", "\n\n", "1", "é", "数", "😀", "", " \t", "'", "⁠")


class Chat:
    """See the module's text. ``tokenizer`` is a Hugging Face one with a chat template; ``arguments`` go to the template
    with every prompt; ``system`` is a system prompt or ""."""

    def __init__(self, tokenizer: Any, system: str = "", **arguments: Any) -> None:
        self._tokenizer = tokenizer
        self._system = [{"role": "system", "content": system}] if system else []
        # A template that knows no such argument ignores it. Without it a reasoning model would think before the label.
        self._arguments = {"enable_thinking": False, **arguments}
        added = tokenizer.added_tokens_decoder
        #: Texts that are tokens of their own wherever they stand. Runs of white space are none: they control nothing.
        self.controls = tuple(token.content for token in added.values() if token.content.strip())
        self._special = frozenset(number for number, token in added.items() if token.special)
        special = sorted((token.content for token in added.values() if token.special), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, special)) or r"(?!)")
        # Stripping ones take white space around them along, which may stand on the other side of the border.
        self._borders = {token.content for token in added.values() if token.special and not token.lstrip}
        self.parts_safely = True

    def text(self, messages: Sequence[dict[str, str]]) -> str:
        """The whole prompt, up to where the label is read. Raises UnicodeError when it has no UTF-8 form."""
        text: str = self._tokenizer.apply_chat_template(
            [*self._system, *messages], tokenize=False, add_generation_prompt=True, **self._arguments
        )
        text.encode()  # a tokenizer would only raise a TypeError
        return text

    def ids(self, text: str) -> list[int]:
        """Token ids of a text; nothing is added and nothing cut. Raises ValueError for a text that yields a special
        token which does not stand in it, as a normalising tokenizer may make one of look-alike characters."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        if sum(number in self._special for number in ids) != sum(1 for _ in self._pattern.finditer(text)):
            raise ValueError("A text of the request reads as a control token of the model.")
        return ids

    def label_id(self, prompt: str, label: str) -> int | None:
        """The one token that ``label`` adds behind a prompt, or None when it is not one token."""
        before, after = self.ids(prompt), self.ids(prompt + label)
        return after[-1] if after[:-1] == before else None

    def check_borders(self, state: str, prompt: str) -> bool:
        """Whether prompts may be tokenised in two parts, with ``state`` standing in ``prompt``: for every kind of end
        of a state both ways must give the same ids. Otherwise :meth:`head` finds none."""
        texts = [prompt.replace(state, state + end) for end in _ENDS]
        cuts = [self._border(text, len(text)) for text in texts]
        self.parts_safely = all(
            self.ids(text[:cut]) + self.ids(text[cut:]) == self.ids(text) for text, cut in zip(texts, cuts, strict=True)
        )
        return self.parts_safely

    def head(self, text: str, other: str) -> str:
        """A beginning that both prompts share and that may be tokenised alone: the ids of every prompt that has it are
        its ids and those of the rest."""
        return other[: self._border(other, common([text, other]))] if self.parts_safely else ""

    def _border(self, text: str, end: int) -> int:
        """Where the last control token within ``text[:end]`` begins, 0 if there is none: a tokenizer joins nothing over
        it, so what precedes it may be tokenised alone."""
        starts = [match.start() for match in self._pattern.finditer(text, 0, end) if match[0] in self._borders]
        return starts[-1] if starts else 0


def common(several: Sequence[Any]) -> int:
    """How long a beginning all the sequences share."""
    low, high = min(several), max(several)
    for index, pair in enumerate(zip(low, high, strict=False)):
        if pair[0] != pair[1]:
            return index
    return len(low)
