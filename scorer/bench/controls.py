"""The rows that the acceptance list asks when it is given none: plain messages to be routed, and the named shapes.

The options have ids that say nothing, so that only their descriptions can be followed, and each is the right one in
every position equally often, so that an engine that goes by position is right no more often than by chance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scorer.bench.forms import Row

__all__ = ["BINARY", "SENTENCE", "SIXTEEN", "control_rows", "decisions", "forty", "rotated"]

_IDS = ("a", "b", "c", "d")
_TOPICS = {
    "payments, refunds, invoices and charges on a card": (
        "I was charged twice for the same invoice, please refund the second payment.",
        "The charge on my credit card is higher than the price on the invoice.",
        "My refund has not been paid back to my card yet.",
        "Please send me an invoice for my last payment.",
        "Why was my card charged again after I asked for a refund?",
        "The payment was refused although my card is valid.",
    ),
    "delivery, shipping and tracking of parcels": (
        "My parcel has not been delivered and the tracking page shows nothing.",
        "The package was shipped to the wrong street; where is the courier now?",
        "Tracking says the parcel was delivered, but there is no package at my door.",
        "How long does shipping of a parcel take?",
        "The courier left my package in the rain during delivery.",
        "Can the delivery of my parcel be moved to Friday?",
    ),
    "passwords, logging in and locked accounts": (
        "I forgot my password and cannot log in.",
        "My account is locked after too many login attempts.",
        "The link to reset my password does not work.",
        "Somebody changed the password of my account.",
        "I cannot log in to my account since this morning.",
        "How do I change the password I log in with?",
    ),
    "crashes, errors and bugs in the app": (
        "The app crashes with an error whenever I open the settings.",
        "After the update the app shows a blank screen, this must be a bug.",
        "An error message appears and the app freezes.",
        "There is a bug: the app crashes when I rotate my phone.",
        "The app stops with an error as soon as I press save.",
        "Since the new version the app is full of bugs and keeps crashing.",
    ),
}
_QUESTION = "What is the message about?"
_NOULS = ("Is the message about money?", "Is the message about a parcel?", "Is the writer unable to log in?")
_LEVELS = ["can wait", "this week", "today"]

#: A sentence of which the state of the long shape is made.
SENTENCE = "The north station reports that pump seven was stopped for an hour, checked by the crew and started again. "


def control_rows() -> list[Row]:
    """24 labelled choices of four, three yes-or-no questions and three scores (those six without a label)."""
    out: list[Row] = []
    topics = list(_TOPICS)
    for place, (topic, messages) in enumerate(_TOPICS.items()):
        for number, message in enumerate(messages):
            # The right description comes to stand in each position in turn, through all 24 rows.
            position = (place * len(messages) + number) % len(topics)
            start = (place - position) % len(topics)
            order = topics[start:] + topics[:start]
            criteria = dict(zip(_IDS, order, strict=True))
            out.append(_row(f"control-{place}-{number}", message, _choice(criteria), _IDS, _IDS[order.index(topic)]))
    for number, (text, messages) in enumerate(zip(_NOULS, _TOPICS.values(), strict=False)):
        noul = {"type": "noul", "instructions": text}
        out.append(_row(f"control-noul-{number}", messages[0], noul, ("no", "yes"), None))
        score = {"type": "score", "instructions": "How soon must somebody answer?", "criteria": _LEVELS}
        out.append(_row(f"control-score-{number}", messages[1], score, ("0", "1", "2"), None))
    return out


def rotated(row: Row, field: str) -> dict[str, Any]:
    """The question with every description moved to the next option, the last one's to the first (contract § Acceptance,
    2)."""
    question = row.questions[field]
    ids, texts = list(question["criteria"]), list(question["criteria"].values())
    return {**question, "criteria": dict(zip(ids, texts[-1:] + texts[:-1], strict=True))}


def decisions(questions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Choices as ``/decide/shared`` takes them."""
    return [
        {
            "id": f"decision-{number}",
            "question": question["instructions"],
            "options": [{"id": option, "description": text} for option, text in question["criteria"].items()],
        }
        for number, question in enumerate(questions, 1)
    ]


def forty() -> list[dict[str, Any]]:
    """40 different choices of two, three and four options (contract § Acceptance, 7)."""
    topics = list(_TOPICS)
    return [
        _choice(
            {option: topics[(number + place) % len(topics)] for place, option in enumerate(_IDS[: 2 + number % 3])},
            f"What is point {number} of the message about?",
        )
        for number in range(1, 41)
    ]


def _choice(criteria: dict[str, str], question: str = _QUESTION) -> dict[str, Any]:
    return {"type": "choice", "instructions": question, "criteria": criteria}


#: The named shapes (contract § Acceptance, 4): 21 binary criteria, and the 16 that go with the long state. Choices of
#: two, which every surface takes.
_SIDES = {"yes": "The report says so.", "no": "The report does not say so."}
BINARY = [_choice(_SIDES, f"Does the report mention pump {number}?") for number in range(1, 22)]
SIXTEEN = [_choice(_SIDES, f"Was pump {number} started again?") for number in range(1, 17)]


def _row(row_id: str, state: str, question: dict[str, Any], labels: tuple[str, ...], expected: str | None) -> Row:
    return Row(
        row_id, "controls", "control", state, {"decision": question}, {"decision": labels}, {"decision": expected}
    )
