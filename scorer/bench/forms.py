"""The three forms of a labelled row, read into one. Pure.

A rule that a row breaks is appended to a list as (field, rule); nothing of a row's text is quoted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from scorer.bench.plan import MAX_ALL_OPTIONS
from scorer.engines.questions import read_options

__all__ = ["Row", "read_row", "refusals"]

#: The name of the one question of a JevBench or semif row (engine/intern-decision.md §4).
_FIELD = "decision"
#: More options than any engine takes (wire/systemone.md §2.5); an engine with a lower limit refuses the row itself.
_MOST_OPTIONS = 255
#: Options of a decision on semif's surface (contract § Endpoints).
_SEMIF_OPTIONS = range(2, 17)
_SIDES = {"yes": "yes", "true": "yes", "1": "yes", "no": "no", "false": "no", "0": "no"}

Broken = list[tuple[str, str]]


class Row(NamedTuple):
    """One row. By question name: ``questions`` as an engine takes them, ``labels`` (the options in the row's order) and
    ``expected`` (the label, or None)."""

    id: str
    file: str
    family: str | None
    state: Any
    questions: dict[str, dict[str, Any]]
    labels: dict[str, tuple[str, ...]]
    expected: dict[str, str | None]


def read_row(value: Any, file: str, broken: Broken) -> Row | None:
    """The row that a line's JSON value is; None, with the broken rules in ``broken``, when it is none."""
    if not isinstance(value, dict):
        broken.append(("", "a row must be an object"))
        return None
    row_id = value.get("id")
    if not isinstance(row_id, str) or not row_id:
        broken.append(("id", "must be a nonempty string"))
    if not isinstance(value.get("state"), (str, dict, list)):
        broken.append(("state", "must be a string, an object or an array"))
    if value.get("images"):
        broken.append(("images", "are not supported"))
    family = value.get("family", value.get("category"))
    if family is not None and not isinstance(family, str):
        broken.append(("family", "must be a string or null"))
    questions: dict[str, dict[str, Any]] = {}
    labels: dict[str, tuple[str, ...]] = {}
    expected: dict[str, str | None] = {}
    if "questions" in value:
        _canonical(value, questions, labels, expected, broken)
    elif isinstance(value.get("question"), dict):
        _jevbench(value, questions, labels, expected, broken)
    elif "options" in value:
        _semif(value, questions, labels, expected, broken)
    else:
        broken.append(("question", "must be an object, or a string with options beside it; or questions must be there"))
    if broken:
        return None
    assert isinstance(row_id, str)
    return Row(row_id, file, family, value["state"], questions, labels, expected)


def refusals(row: Row, orderings: str, surface: str) -> Broken:
    """Why a sound row cannot be asked with these orderings, or on this surface."""
    out: Broken = []
    if orderings == "all":
        out += [
            (name, f"orderings all takes at most {MAX_ALL_OPTIONS} options; there are {len(row.labels[name])}")
            for name, question in row.questions.items()
            if question["type"] == "choice" and len(row.labels[name]) > MAX_ALL_OPTIONS
        ]
    if surface == "decide":
        if not row.state:
            out.append(("state", "must not be empty on /decide"))
        for name, question in row.questions.items():
            if question["type"] != "choice":
                out.append((name, "/decide takes choices only"))
            elif not isinstance(question.get("instructions"), str) or not question["instructions"]:
                out.append((name, "/decide takes a nonempty string as the question"))
            elif len(row.labels[name]) not in _SEMIF_OPTIONS:
                out.append((name, "/decide takes 2 to 16 options"))
            elif not all(isinstance(text, str) for text in question["criteria"].values()):
                out.append((name, "/decide takes strings as descriptions"))
    return out


def _jevbench(value: Any, questions: Any, labels: Any, expected: Any, broken: Broken) -> None:
    question = value["question"]
    own = _options(question, "question", broken)
    if own is None:
        return
    given = value.get("labels")
    if given is not None and (not isinstance(given, list) or {str(one) for one in given} != set(own)):
        broken.append(("labels", "must be a list of exactly the question's options"))
    questions[_FIELD], labels[_FIELD] = question, own
    expected[_FIELD] = _label(value.get("expected"), question["type"], own, "expected", broken)


def _canonical(value: Any, questions: Any, labels: Any, expected: Any, broken: Broken) -> None:
    asked, targets = value["questions"], value.get("targets")
    if not isinstance(asked, dict) or not asked:
        broken.append(("questions", "must be an object of at least one question"))
        return
    if targets is None:
        targets = {}
    if not isinstance(targets, dict):
        broken.append(("targets", "must be an object"))
        return
    broken += [(f"targets.{name}", "there is no such question") for name in targets if name not in asked]
    for name, question in asked.items():
        if not name:
            broken.append(("questions", "a question's name must not be empty"))
            continue
        own = _options(question, f"questions.{name}", broken)
        if own is None:
            continue
        target = targets.get(name)
        if target is not None and not isinstance(target, dict):
            broken.append((f"targets.{name}", "must be an object with a label"))
            target = None
        questions[name], labels[name] = question, own
        given = None if target is None else target.get("label")
        expected[name] = _label(given, question["type"], own, f"targets.{name}.label", broken)


def _semif(value: Any, questions: Any, labels: Any, expected: Any, broken: Broken) -> None:
    """wire/semif.md §1, its rules in its order."""
    text, options = value.get("question"), value["options"]
    if not isinstance(text, str) or not text:
        broken.append(("question", "must be a nonempty string"))
    if not value.get("state"):
        broken.append(("state", "must not be empty"))
    if not isinstance(options, list) or len(options) not in _SEMIF_OPTIONS:
        broken.append(("options", "must be a list of 2 to 16 options"))
        return
    criteria: dict[str, str] = {}
    for index, option in enumerate(options):
        option_id = option.get("id") if isinstance(option, Mapping) else None
        if not isinstance(option_id, str) or not isinstance(option.get("description"), str):
            broken.append((f"options.{index}", "must be an object with a string id and a string description"))
        elif option_id in criteria:
            broken.append((f"options.{index}.id", "occurs twice in the row"))
        else:
            criteria[option_id] = option["description"]
    field, given = ("label", value["label"]) if "label" in value else ("expected", value.get("expected"))
    questions[_FIELD] = {"type": "choice", "instructions": text, "criteria": criteria}
    labels[_FIELD] = tuple(criteria)
    expected[_FIELD] = _label(given, "choice", labels[_FIELD], field, broken)


def _options(question: Any, where: str, broken: Broken) -> tuple[str, ...] | None:
    if not isinstance(question, dict):
        broken.append((where, "must be an object"))
        return None
    criteria = question.get("criteria")
    if question.get("type") == "choice" and type(criteria) is dict and 1 <= len(criteria) <= _MOST_OPTIONS:
        # What most rows are, in half the time: the rules of read_options for the names of a JSON object.
        return tuple(criteria)
    try:
        labels = read_options(question, _MOST_OPTIONS).labels
    except ValueError as error:
        broken.append((where, str(error)))
        return None
    if question["type"] == "noul" and not question.get("instructions") and not question.get("criteria"):
        # design §5: such a question asks nothing.
        broken.append((where, "a noul needs instructions or a described side"))
        return None
    return labels


def _label(given: Any, kind: str, labels: tuple[str, ...], where: str, broken: Broken) -> str | None:
    if given is None:
        return None
    text = given
    if kind == "noul":
        # Labels of a noul are no and yes; files also write its sides as criteria name them (engine §1.5).
        text = _SIDES.get(str(given).lower()) if isinstance(given, (str, int)) else None
    elif type(given) is int:
        text = str(given)
    if not isinstance(text, str) or text not in labels:
        broken.append((where, "is none of the question's options"))
        return None
    return text
