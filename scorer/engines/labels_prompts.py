"""From a request to token ids: rendered, escaped, counted, and parted into what its prompts share and what each has
alone. No forward.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scorer.engines.base import PreparedCall, Question
from scorer.engines.labels_chat import Chat, common
from scorer.engines.labels_prompt import MOST_LABELS, Asked, Escape, Prompt, candidates, plain
from scorer.engines.labels_request import Read, Request
from scorer.engines.questions import Options, check_questions, read_options
from shared.jsonio import as_text
from shared.wire import Limits

__all__ = ["Prompts"]

#: Stands for any question when the beginning that all share is looked for. It begins with a character that no caller's
#: question will: a private one.
_ANY = Asked("noul", "\ue000", (("no", ""), ("yes", "")))
_OTHER = _ANY._replace(instructions="Did it?")
_PROBE_STATE = "The pump stopped twice."
#: Tokens behind the last control token before the question: a marker and the words of a role are fewer.
_WORTH_SHARING = 32


class Prompts:
    """See the module's text. ``renderer`` has :func:`scorer.engines.labels_prompt.render`'s shape; ``marker`` is "" for
    none. Making one renders and tokenises a probe, and finds the labels."""

    def __init__(self, chat: Chat, renderer: Callable[..., Prompt], marker: str) -> None:
        self._chat, self._renderer, self._marker = chat, renderer, marker
        self._escape = Escape([*chat.controls, marker])
        self._ids: dict[str, int | None] = {}
        #: Labels that are one token each behind a prompt, all different, in the order of C4.
        self.letters = list(candidates())
        #: A whole prompt of no caller's, and how many of its ids come before the question.
        self.probe = self._render(_PROBE_STATE, _ANY)[0]
        self.before_question = common([chat.ids(self.probe), chat.ids(self._render(_PROBE_STATE, _OTHER)[0])])
        by_id: dict[int, str] = {}
        for letter in self.letters:
            number = self._label_id(letter)
            if number is not None:
                by_id.setdefault(number, letter)
        self.letters = list(by_id.values())[:MOST_LABELS]
        chat.check_borders(_PROBE_STATE, self.probe)

    def request(
        self, state: Any, calls: Sequence[Mapping[str, Question]], salt: str, limits: Limits, most: int
    ) -> list[PreparedCall]:
        """Every call of one request. A payload is the request, the index of the call's first question in it, and the
        call's options by field.

        Raises ValueError for a question that is not one or has too many options, for a prompt of more than
        ``limits.tokens``, and for a request of more than ``most`` tokens, what its prompts share counted once.
        """
        shown = self._escape(as_text(state))
        fields: list[dict[str, Options]] = []
        asked: list[Asked] = []
        for questions in calls:
            check_questions(questions, limits.questions)
            fields.append({name: self._options(question, limits) for name, question in questions.items()})
            asked += [
                plain(questions[name].get("instructions"), options, self._escape)
                for name, options in fields[-1].items()
            ]
        other = self._render(shown, _ANY)[0]
        head = self._chat.head(self._render(shown, asked[0])[0], other)
        try:
            digests, request = self._tokenise(shown, asked, other, head, salt, limits.tokens)
        except _Headless:
            digests, request = self._tokenise(shown, asked, other, "", salt, limits.tokens)
        if request.tokens > most:
            # The web tier knows the sentence by its beginning.
            raise ValueError(
                f"Example has {request.tokens} tokens, above {most} for all its questions; truncation is forbidden"
            )
        prepared, first = [], 0
        for options in fields:
            reads = request.reads[first : first + len(options)]
            digest = _digest(digests[first : first + len(options)])
            tokens = sum(read.tokens * read.times for read in reads)
            prepared.append(PreparedCall(tokens, digest, (request, first, options)))
            first += len(options)
        return prepared

    def _tokenise(
        self, state: str, asked: Sequence[Asked], other: str, head: str, salt: str, most: int
    ) -> tuple[list[bytes], Request]:
        """The prompts' hashes and the request. Raises _Headless when a prompt does not begin with ``head``."""
        head_ids = self._chat.ids(head)
        # A state that is too long by itself is not rendered once a question.
        _check_length(len(head_ids), most)
        digests, rests, labels = [], [], []
        for one in asked:
            text, names = self._render(state, one)
            if not text.startswith(head):
                raise _Headless
            digests.append(hashlib.sha256(text.encode()).digest())
            rests.append(self._chat.ids(text[len(head) :]))
            _check_length(len(head_ids) + len(rests[-1]), most)
            labels.append([self._known_id(name) for name in names])
        # What rests begin with alike may depend on the questions, and a kept prefix should not, so a little is left to
        # them. It is much where a renderer puts the state into the question's turn. A rest keeps a token to be read.
        size = min(common([*rests, self._chat.ids(other[len(head) :])]), *(len(rest) - 1 for rest in rests))
        size = size if size >= _WORTH_SHARING or not head else 0
        shared = head_ids + rests[0][:size]
        reads = [Read(rest[size:], own, len(head_ids) + len(rest)) for rest, own in zip(rests, labels, strict=True)]
        return digests, Request(shared, salt, reads)

    def _options(self, question: Question, limits: Limits) -> Options:
        score = isinstance(question, Mapping) and question.get("type") == "score"
        return read_options(question, limits.levels if score else limits.options)

    def _render(self, state: str, asked: Asked) -> tuple[str, list[str]]:
        prompt = self._renderer(state, asked, self.letters, self._marker)
        return self._chat.text(prompt.messages), prompt.labels

    def _label_id(self, label: str) -> int | None:
        if label not in self._ids:
            self._ids[label] = self._chat.label_id(self.probe, label)
        return self._ids[label]

    def _known_id(self, label: str) -> int:
        number = self._label_id(label)
        if number is None:
            raise RuntimeError("the renderer gave a label that is not one token")  # its mistake, not the caller's
        return number


class _Headless(Exception):
    """A renderer put something of the question in front of the state."""


def _check_length(tokens: int, most: int) -> None:
    if tokens > most:
        raise ValueError(f"Example has {tokens} tokens, above {most}; truncation is forbidden")


def _digest(digests: Sequence[bytes]) -> str:
    """sha256 (hex) of a call's one prompt, or over the sha256 of each of several."""
    return (digests[0] if len(digests) == 1 else hashlib.sha256(b"".join(digests)).digest()).hex()
