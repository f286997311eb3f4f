"""From a row to calls: orderings of the options, waves, packing, field names. Pure.

The rules are the contract's § Mapping onto the model, and those of the web tier's plan: what is measured here must be
what is served. Only a choice has orderings: a noul's two labels are fixed by the engine, and the levels of a score are
a scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import permutations
from typing import Any, NamedTuple

__all__ = ["MAX_ALL_OPTIONS", "MODES", "Call", "Item", "calls", "count_orders", "orders"]

#: n! calls above this many options are refused, as on the contract's surface.
MAX_ALL_OPTIONS = 4
MODES = ("none", "reverse", "rotations", "all")


class Item(NamedTuple):
    """One question in one ordering: its name in the row, its name in the call, the ordering's number and the order of
    the options (positions in the row's own order)."""

    field: str
    name: str
    ordering: int
    order: tuple[int, ...]


class Call(NamedTuple):
    """One ``predict()``: what it asks, and the questions by their names in the call."""

    items: tuple[Item, ...]
    questions: dict[str, Mapping[str, Any]]


@lru_cache(maxsize=256)
def orders(kind: str, options: int, mode: str) -> tuple[tuple[int, ...], ...]:
    """The orders to ask, the row's own first: ``none`` that one, ``reverse`` and the reversed one, ``rotations`` the n
    cyclic shifts, ``all`` the n! permutations. Raises ValueError for ``all`` above :data:`MAX_ALL_OPTIONS`."""
    own = tuple(range(options))
    if mode == "none" or kind != "choice" or options < 2:
        return (own,)
    if mode == "reverse":
        return (own, own[::-1])
    if mode == "rotations":
        return tuple(own[k:] + own[:k] for k in own)
    if mode == "all" and options <= MAX_ALL_OPTIONS:
        return tuple(permutations(own))
    raise ValueError(f"orderings {mode!r} of {options} options")


def count_orders(kind: str, options: int, mode: str) -> int:
    """How many :func:`orders` there are; for too many options of ``all`` the number of rotations, so that a row that is
    refused anyway can be counted."""
    if mode == "none" or kind != "choice" or options < 2:
        return 1
    if mode == "all" and options > MAX_ALL_OPTIONS:
        return options
    return len(orders(kind, options, mode))


def calls(
    questions: Mapping[str, Mapping[str, Any]],
    labels: Mapping[str, Sequence[str]],
    mode: str,
    per_call: int,
) -> list[Call]:
    """The calls of one row.

    ``per_call`` is the number of questions of a call: 1 asks one by one. Ordering k of every question that has more
    than k forms wave k; a wave is packed in the row's order, and no call holds two orderings of one question. A
    question alone in its call is named ``q``, several ``q1`` to ``qN``.
    """
    if mode == "none" and (per_call == 1 or len(questions) == 1):
        # What most runs are made of, without the waves.
        return [Call(_alone(field, len(labels[field])), {"q": question}) for field, question in questions.items()]
    asked = {field: orders(question["type"], len(labels[field]), mode) for field, question in questions.items()}
    out: list[Call] = []
    for wave in range(max(map(len, asked.values()))):
        members = [field for field, own in asked.items() if len(own) > wave]
        for start in range(0, len(members), per_call):
            packed = members[start : start + per_call]
            names = ["q"] if len(packed) == 1 else [f"q{number}" for number in range(1, len(packed) + 1)]
            items = tuple(Item(f, name, wave, asked[f][wave]) for f, name in zip(packed, names, strict=True))
            out.append(Call(items, {item.name: _ordered(questions[item.field], item) for item in items}))
    return out


@lru_cache(maxsize=256)
def _alone(field: str, options: int) -> tuple[Item]:
    return (Item(field, "q", 0, tuple(range(options))),)


def _ordered(question: Mapping[str, Any], item: Item) -> Mapping[str, Any]:
    if item.ordering == 0:
        return question
    options = list(question["criteria"].items())
    return {**question, "criteria": dict(options[position] for position in item.order)}
