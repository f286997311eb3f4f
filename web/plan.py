"""From a validated request to calls: orderings, waves, packing, field names. Pure.

The rules are the contract's § Mapping onto the model; a call is one ``predict()``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, NamedTuple

from shared.wire import NO_TERMS, CallItem, Job, Terms

__all__ = [
    "MAX_ALL_OPTIONS",
    "Asked",
    "Plan",
    "count_orderings",
    "orderings",
    "plan_decisions",
    "plan_independent",
    "plan_joint",
]

#: ``orderings: "all"`` is n! calls' worth of work; above this many options it is refused (contract § Mapping).
MAX_ALL_OPTIONS = 4

Order = tuple[int, ...]


class Asked(NamedTuple):
    """Where one ordering of one decision was asked: the call's index in the request, the field name in it, the number
    of questions it holds, and the order of the options (positions in the caller's order)."""

    call: int
    field: str
    questions: int
    order: Order


@dataclass(frozen=True)
class Plan:
    """A job of decisions for the scorer and, per decision in request order, where each of its orderings was asked."""

    job: Job
    asked: tuple[tuple[Asked, ...], ...]

    @property
    def questions_per_call(self) -> list[int]:
        """Number of questions of each call, in the order the calls run."""
        return [len(call) for call in self.job.calls]


def orderings(options: int, mode: str) -> list[Order]:
    """The option orders of one decision, the caller's own first.

    ``none``: that one; ``rotations``: the n cyclic shifts, ordering k starting at option k; ``all``: the n!
    permutations in lexicographic order of positions. Raises ValueError for any other mode and for ``all`` above
    :data:`MAX_ALL_OPTIONS`.
    """
    own = tuple(range(options))
    if mode == "none":
        return [own]
    if mode == "rotations":
        return [own[k:] + own[:k] for k in own]
    if mode == "all" and options <= MAX_ALL_OPTIONS:
        return list(permutations(own))
    raise ValueError(f"orderings {mode!r} of {options} options")


def count_orderings(options: int, mode: str) -> int:
    """How many orders :func:`orderings` would give, without making them."""
    if mode == "all":
        count = 1
        for factor in range(2, options + 1):
            count *= factor
        return count
    return options if mode == "rotations" else 1


def plan_decisions(state: Any, decisions: Sequence[Mapping[str, Any]], per_call: int) -> Plan:
    """Plan ``/decide`` (one decision) and ``/decide/shared``.

    Ordering k of every decision that has more than k forms wave k; each wave is packed greedily, in request order, into
    calls of at most ``per_call`` questions, and no wave tops up an earlier one's last call. So wave 0 is the request as
    written, and no call holds two orderings of one decision. Field names restart with every call: ``q`` alone, else
    ``q1`` to ``qN``.
    """
    orders = [orderings(len(decision["options"]), decision["orderings"]) for decision in decisions]
    calls: list[list[CallItem]] = []
    asked: list[list[Asked]] = [[] for _ in decisions]
    for wave in range(max(map(len, orders))):
        members = [index for index, own in enumerate(orders) if len(own) > wave]
        for start in range(0, len(members), per_call):
            packed = members[start : start + per_call]
            call = []
            for name, index in zip(_field_names(len(packed)), packed, strict=True):
                order = orders[index][wave]
                asked[index].append(Asked(len(calls), name, len(packed), order))
                call.append(CallItem(name, index, None if wave == 0 else order))
            calls.append(call)
    questions = [_choice(decision) for decision in decisions]
    return Plan(Job(state, questions, calls), tuple(map(tuple, asked)))


def plan_joint(state: Any, questions: Mapping[str, Any]) -> Job:
    """Plan ``/v1/systemone`` in the ``native`` profile: all questions in one call, under the caller's own names."""
    call = [CallItem(name, index) for index, name in enumerate(questions)]
    return Job(state, list(questions.values()), [call])


def plan_independent(state: Any, questions: Sequence[Any], terms: Terms = NO_TERMS) -> Job:
    """Plan ``/v1/systemone`` in the ``jev`` profile, and any other surface of independent questions: one call each,
    field ``q``, so that neither a name nor a neighbour can change an answer (wire/systemone.md §10, rows 5 and 6)."""
    return Job(state, list(questions), [[CallItem("q", index)] for index in range(len(questions))], terms)


def _field_names(size: int) -> list[str]:
    return ["q"] if size == 1 else [f"q{number}" for number in range(1, size + 1)]


def _choice(decision: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "choice",
        "instructions": decision["question"],
        "criteria": {option["id"]: option["description"] for option in decision["options"]},
    }
