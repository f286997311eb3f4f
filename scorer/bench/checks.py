"""The acceptance list's checks that need nothing but answers: of an engine or of a server alike.

A check returns a :class:`Line`. What a check cannot ask of this source is "not applicable", with the reason; what was
asked and not answered is a failure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scorer.bench import controls, recording
from scorer.bench.answers import numbers
from scorer.bench.forms import Row
from scorer.bench.plan import calls
from scorer.bench.source import Answer, Failure, Source
from shared.answers import BrokenAnswer

__all__ = [
    "FAIL",
    "NOT_APPLICABLE",
    "PASS",
    "Line",
    "Scores",
    "compared",
    "latency",
    "long_state",
    "negative",
    "positive",
    "score",
    "whole",
]

PASS, FAIL, NOT_APPLICABLE = "pass", "FAIL", "not applicable"

#: Right answers that chance would give less often than this are not chance.
_CHANCE = 0.001
#: Negative control: the contract's bench had 122 of 144 follow and 10 of 144 stay.
_LEAST_FOLLOW, _MOST_STAY = 0.5, 0.25
_REPEATS = 5
_LONG_TOKENS = 3900

#: By (file, row, field): probabilities by label, decision, and the hash of the prompt.
Scores = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Line:
    """One line of the list: what was expected, what was found, ``outcome`` (pass, FAIL or not applicable) and why."""

    name: str
    expected: str
    found: str
    outcome: str
    why: str = ""

    def to_json(self) -> dict[str, str]:
        """As a JSON object."""
        return asdict(self)


def score(source: Source, rows: Sequence[Row]) -> tuple[Scores, list[str]]:
    """Every question of every row, one by one, as the row puts it; and what has no sound answer, by name."""
    out: Scores = {}
    lost: list[str] = []
    for row in rows:
        asked = calls(row.questions, row.labels, "none", 1)
        for call, answer in zip(asked, source.ask(row.state, [one.questions for one in asked]), strict=True):
            name = f"{row.file} {row.id} {call.items[0].field}"
            if isinstance(answer, Failure):
                lost.append(f"{name}: {answer.kind}: {answer.message}")
                continue
            found: list[dict[str, Any]] = []
            lost += [f"{name}: {rule}" for _, rule in recording.records(row, call, answer, found)]
            for record in found:
                out[name] = {
                    "probabilities": record["probabilities"],
                    "decision": record["decision"],
                    "prompt": record["prompt_sha256"],
                }
    return out, lost


def whole(scores: Scores, lost: Sequence[str]) -> Line:
    """No question without a sound answer."""
    total = len(scores) + len(lost)
    found = f"{len(scores)} of {total}" + (f"; {lost[0]}" if lost else "")
    return Line(
        "whole answers", "every option answered, every number finite", found, PASS if total and not lost else FAIL
    )


def positive(rows: Sequence[Row], scores: Scores, least: float | None, unfit: str) -> Line:
    """Contract § Acceptance, 1. ``least`` is the accuracy asked; without one it must be better than chance. ``unfit``
    says why the engine cannot know the answers, "" if it can."""
    asked = [
        (row.expected[field], scores[name]["decision"], len(row.labels[field]))
        for row in rows
        for field in row.questions
        if row.expected[field] is not None and (name := f"{row.file} {row.id} {field}") in scores
    ]
    expected = "better than chance (p < 0.001)" if least is None else f"accuracy at least {least:g}"
    if not asked:
        return Line("positive control", expected, "no labelled row was answered", FAIL)
    right = sum(wanted == decision for wanted, decision, _ in asked)
    chance = statistics.fmean(1 / options for _, _, options in asked)
    found = f"{right} of {len(asked)} right; chance {chance:.2f}"
    if unfit:
        return Line("positive control", expected, found, NOT_APPLICABLE, unfit)
    good = _tail(right, len(asked), chance) < _CHANCE if least is None else right / len(asked) >= least
    return Line("positive control", expected, found, PASS if good else FAIL)


def negative(source: Source, rows: Sequence[Row], scores: Scores, unfit: str) -> Line:
    """Contract § Acceptance, 2: the descriptions of each choice moved one place; the decision has to follow its
    description, not stay with the option."""
    follow = stay = asked = lost = 0
    for row in rows:
        for field, question in row.questions.items():
            before = scores.get(f"{row.file} {row.id} {field}")
            if question["type"] != "choice" or len(row.labels[field]) < 2 or before is None:
                continue
            (answer,) = source.ask(row.state, [{"q": controls.rotated(row, field)}])
            asked += 1
            try:
                if isinstance(answer, Failure):
                    raise BrokenAnswer(answer.message)
                after = numbers(answer.answers.get("q"), "choice", row.labels[field]).decision
            except BrokenAnswer:
                lost += 1
                continue
            labels = row.labels[field]
            moved_to = labels[(labels.index(before["decision"]) + 1) % len(labels)]
            follow += after == moved_to
            stay += after == before["decision"]
    expected = f"at least {_LEAST_FOLLOW:.0%} follow the moved description, at most {_MOST_STAY:.0%} stay"
    if not asked:
        return Line("negative control", expected, "no choice was answered", FAIL)
    found = f"{follow} of {asked} follow, {stay} stay" + (f", {lost} are not answered" if lost else "")
    if unfit:
        return Line("negative control", expected, found, NOT_APPLICABLE, unfit)
    good = not lost and follow >= _LEAST_FOLLOW * asked and stay <= _MOST_STAY * asked
    return Line("negative control", expected, found, PASS if good else FAIL)


def compared(name: str, one: Scores, other: Scores, tolerance: float) -> Line:
    """Two scorings of the same questions: bit-identical, or how far apart. ``tolerance`` 0 asks for the former; above
    it no probability may move, and no decision at all."""
    expected = "bit-identical" if tolerance == 0 else f"no decision moved, no probability by more than {tolerance:g}"
    both = one.keys() & other.keys()
    missing = len(one.keys() ^ other.keys())
    moves = [
        max(abs(p - other[key]["probabilities"][label]) for label, p in one[key]["probabilities"].items())
        for key in both
    ]
    moved = sum(one[key]["decision"] != other[key]["decision"] for key in both)
    prompts = sum(one[key]["prompt"] != other[key]["prompt"] for key in both)
    largest = max(moves, default=math.inf)  # nothing in common is no agreement
    if largest == 0 and not moved and not missing and not prompts:
        return Line(name, expected, f"bit-identical ({len(both)} answers)", PASS)
    found = f"{sum(move > 0 for move in moves)} of {len(both)} answers differ, largest move {largest:.3g}, "
    found += f"{moved} decisions moved"
    if prompts:
        found += f"; {prompts} prompts differ"
    if missing:
        found += f"; {missing} answers in one only"
    return Line(name, expected, found, PASS if largest <= tolerance and not (moved or missing or prompts) else FAIL)


def latency(source: Source, name: str, state: Any, questions: Sequence[Mapping[str, Any]], where: str) -> Line:
    """Contract § Acceptance, 4: one shape, packed as ``/decide/shared`` packs. The time is told, not judged: which one
    is good is the caller's to say."""
    expected = "an answer; the time is for reading"
    fields = {f"f{number}": question for number, question in enumerate(questions)}
    asked = calls(fields, dict.fromkeys(fields, ("yes", "no")), "none", max(2, source.per_call))
    totals: list[float] = []
    inner: list[float] = []
    tokens: list[int] = []
    for _ in range(_REPEATS):
        outcomes = list(source.ask(state, [call.questions for call in asked]))
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                found = f"{outcome.kind}: {outcome.message}"
                if "truncation is forbidden" in outcome.message or outcome.kind == "http_422":
                    return Line(name, expected, found, NOT_APPLICABLE, "the shape is over a limit of this engine")
                return Line(name, expected, found, FAIL)
        answers = [outcome for outcome in outcomes if isinstance(outcome, Answer)]
        totals.append(sum(answer.total_ms for answer in answers))
        inner.append(sum(answer.inference_ms for answer in answers))
        tokens = [answer.input_tokens for answer in answers]
    found = (
        f"{where}: median {statistics.median(totals):.4g} ms, slowest of {_REPEATS} {max(totals):.4g} ms, the engine's "
        f"own {statistics.median(inner):.4g} ms; a call each of {' and '.join(map(str, tokens))} tokens"
    )
    return Line(name, expected, found, PASS)


def long_state(source: Source) -> str:
    """A state of about 3,900 tokens by this source's own count."""
    question = [{"q": controls.SIXTEEN[0]}]

    def count(sentences: int) -> int:
        (answer,) = source.ask(controls.SENTENCE * sentences, question)
        return answer.input_tokens if isinstance(answer, Answer) else 0

    few, more = count(8), count(24)
    each = (more - few) / 16
    # A server that counts no tokens gets what is usual for a sentence of this length in English.
    sentences = round(_LONG_TOKENS / each) if each > 0 else _LONG_TOKENS // 23
    return controls.SENTENCE * max(1, min(sentences, 2000))


def _tail(right: int, total: int, chance: float) -> float:
    """The probability of at least ``right`` of ``total`` by chance."""
    return math.fsum(math.comb(total, k) * chance**k * (1 - chance) ** (total - k) for k in range(right, total + 1))
