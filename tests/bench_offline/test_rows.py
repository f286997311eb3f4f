"""The input: three forms, every rule with file, line and field, and nothing scored before all of it is sound."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scorer.bench import plan, rows
from scorer.bench.index import Index
from scorer.bench.rows import RowsError
from tests.bench_offline.planted import checked, jev_row, write

CANONICAL: dict[str, Any] = {
    "id": "c1",
    "state": {"text": "the pump stopped"},
    "questions": {
        "part": {"type": "choice", "instructions": "Which?", "criteria": {"pump": "a pump", "valve": None}},
        "stopped": {"type": "noul", "instructions": "Did it stop?"},
        "urgency": {"type": "score", "instructions": "How soon?", "criteria": ["later", "soon", "now"]},
    },
    "targets": {"part": {"label": "pump"}, "stopped": {"label": "yes"}, "urgency": {"label": 2}},
    "category": "plant",
}
SEMIF: dict[str, Any] = {
    "id": "s1",
    "state": "the pump stopped",
    "question": "Which?",
    "options": [{"id": "a", "description": "a pump"}, {"id": "b", "description": ""}],
    "label": "a",
}


def problems(*values: Any, tmp_path: Path, **options: Any) -> list[str]:
    with pytest.raises(RowsError) as caught:
        checked(write(tmp_path / "f.jsonl", values), **options)
    return str(caught.value).splitlines()


def test_the_three_forms_become_one(tmp_path: Path) -> None:
    files, found = checked(write(tmp_path / "f.jsonl", [jev_row(0), CANONICAL, SEMIF]))
    jev, canonical, semif = rows.read(files, found)
    assert (jev.labels, jev.expected) == ({"decision": ("fruit", "tools", "birds")}, {"decision": "fruit"})
    assert canonical.labels["stopped"] == ("no", "yes")
    assert canonical.expected == {"part": "pump", "stopped": "yes", "urgency": "2"}
    assert (canonical.family, jev.family, semif.family) == ("plant", "even", None)
    assert semif.questions["decision"] == {
        "type": "choice",
        "instructions": "Which?",
        "criteria": {"a": "a pump", "b": ""},
    }
    assert semif.expected == {"decision": "a"}
    assert (found.rows, found.answers) == (3, 5)


def test_an_option_s_order_is_that_of_the_criteria_not_of_the_labels(tmp_path: Path) -> None:
    files, found = checked(write(tmp_path / "f.jsonl", [jev_row(0) | {"labels": ["birds", "fruit", "tools"]}]))
    (row,) = rows.read(files, found)
    assert row.labels["decision"] == ("fruit", "tools", "birds")


def test_a_row_without_a_label_is_a_row(tmp_path: Path) -> None:
    bare = {name: value for name, value in jev_row(0).items() if name not in ("expected", "labels", "family")}
    canonical = {name: value for name, value in CANONICAL.items() if name != "targets"}
    files, found = checked(write(tmp_path / "f.jsonl", [bare, canonical]))
    assert [set(row.expected.values()) for row in rows.read(files, found)] == [{None}, {None}]


@pytest.mark.parametrize("label", ["yes", "true", "True", True, "1", 1])
def test_a_noul_s_label_may_be_written_as_its_side(tmp_path: Path, label: Any) -> None:
    row = jev_row(0, labels=["no", "yes"], expected=label, question={"type": "noul", "instructions": "Is it?"})
    files, found = checked(write(tmp_path / "f.jsonl", [row]))
    assert next(iter(rows.read(files, found))).expected == {"decision": "yes"}


CHOICE = jev_row(0)["question"]
BROKEN = [
    (b"{\n", "f.jsonl:1: the line is not valid JSON"),
    (b'{"id": NaN}\n', "f.jsonl:1: NaN is not JSON"),
    (b'{"id": 1e999}\n', "f.jsonl:1: a number in the line is too large"),
    (b'{"id": "a", "id": "b"}\n', 'f.jsonl:1: the name "id" occurs twice'),
    (b'{"id": "\\ud800"}\n', "f.jsonl:1: a string in the line holds a lone surrogate"),
    (b"\xff\n", "f.jsonl:1: the line is not UTF-8"),
    (b"[" * 100 + b"]" * 100 + b"\n", "f.jsonl:1: the line is nested deeper than 64 levels"),
    ([], "f.jsonl:1: a row must be an object"),
    (jev_row(0, id=""), "f.jsonl:1: id: must be a nonempty string"),
    (jev_row(0, id=7), "f.jsonl:1: id: must be a nonempty string"),
    (jev_row(0, state=3) | {"state": 3}, "f.jsonl:1: state: must be a string, an object or an array"),
    (jev_row(0, images=["x"]), "f.jsonl:1: images: are not supported"),
    (jev_row(0, family=3), "f.jsonl:1: family: must be a string or null"),
    (jev_row(0, expected="fish"), "f.jsonl:1: expected: is none of the question's options"),
    (jev_row(0, labels=["fruit"]), "f.jsonl:1: labels: must be a list of exactly the question's options"),
    (jev_row(0, question={**CHOICE, "type": ["choice"]}), "f.jsonl:1: question: Question type must be"),
    (jev_row(0, question={**CHOICE, "criteria": []}), "f.jsonl:1: question: Choice criteria must be an object."),
    (jev_row(0, question={**CHOICE, "criteria": {}}), "f.jsonl:1: question: Supply 1 to 255 options."),
    (
        jev_row(0, question={"type": "score", "criteria": {"x": "y"}}),
        "f.jsonl:1: question: Score option keys must be finite numbers.",
    ),
    (jev_row(0, question={"type": "noul"}), "f.jsonl:1: question: a noul needs instructions or a described side"),
    (jev_row(0, question="what?"), "f.jsonl:1: question: must be an object, or a string with options beside it"),
    (CANONICAL | {"questions": {}}, "f.jsonl:1: questions: must be an object of at least one question"),
    (CANONICAL | {"questions": {"": CHOICE}, "targets": {}}, "f.jsonl:1: questions: a question's name"),
    (CANONICAL | {"questions": {"q": 3}, "targets": {}}, "f.jsonl:1: questions.q: must be an object"),
    (CANONICAL | {"targets": []}, "f.jsonl:1: targets: must be an object"),
    (CANONICAL | {"targets": {"nix": {}}}, "f.jsonl:1: targets.nix: there is no such question"),
    (CANONICAL | {"targets": {"part": "pump"}}, "f.jsonl:1: targets.part: must be an object with a label"),
    (CANONICAL | {"targets": {"part": {"label": "x"}}}, "f.jsonl:1: targets.part.label: is none of the question's"),
    (SEMIF | {"question": ""}, "f.jsonl:1: question: must be a nonempty string"),
    (SEMIF | {"state": ""}, "f.jsonl:1: state: must not be empty"),
    (SEMIF | {"options": SEMIF["options"][:1]}, "f.jsonl:1: options: must be a list of 2 to 16 options"),
    (SEMIF | {"options": [{"id": "a"}] * 2}, "f.jsonl:1: options.0: must be an object with a string id"),
    (SEMIF | {"options": SEMIF["options"][:1] * 2}, "f.jsonl:1: options.1.id: occurs twice in the row"),
    (SEMIF | {"label": "c"}, "f.jsonl:1: label: is none of the question's options"),
]


@pytest.mark.parametrize(("line", "message"), BROKEN, ids=[message.partition(": ")[2] for _, message in BROKEN])
def test_a_broken_rule_is_told_with_file_line_and_field(line: Any, message: str, tmp_path: Path) -> None:
    assert problems(line, tmp_path=tmp_path)[0].startswith(message)


def test_every_problem_is_told_and_no_text_of_a_row(tmp_path: Path) -> None:
    secret = "the caller's secret words"
    told = problems(
        jev_row(0, state=secret, expected="fish"),
        jev_row(1),
        b"\n",
        jev_row(1),
        jev_row(2, id="", expected="fish", state=secret),
        tmp_path=tmp_path,
    )
    assert [line.partition(": ")[0] for line in told] == ["f.jsonl:1", "f.jsonl:4", "f.jsonl:5", "f.jsonl:5"]
    assert told[1] == "f.jsonl:4: id: occurs in an earlier line of the file"
    assert secret not in "".join(told)


def test_problems_are_bounded_and_the_rest_counted(tmp_path: Path) -> None:
    told = problems(*[jev_row(number, expected="fish") for number in range(80)], tmp_path=tmp_path)
    assert len(told) == 51
    assert told[-1] == "and 30 more"


def test_ids_are_unique_in_a_file_and_may_occur_in_another(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [jev_row(0)])
    write(tmp_path / "sub" / "b.jsonl", [jev_row(0)])
    files, found = checked(tmp_path)
    assert [row.file for row in rows.read(files, found)] == ["a.jsonl", "sub/b.jsonl"]


def test_files_that_cannot_be_told_apart_or_are_not_there_are_refused(tmp_path: Path) -> None:
    one = write(tmp_path / "one" / "f.jsonl", [jev_row(0)])
    two = write(tmp_path / "two" / "f.jsonl", [jev_row(0)])
    (tmp_path / "empty").mkdir()
    with pytest.raises(RowsError) as caught:
        rows.find([one, two, tmp_path / "nowhere", tmp_path / "empty"])
    told = str(caught.value)
    assert "f.jsonl: two input files have this name" in told
    assert "nowhere: does not exist" in told
    assert "empty: has no .jsonl file" in told


def test_a_file_without_rows_and_a_line_without_end_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert problems(b"\n\n", tmp_path=tmp_path) == ["f.jsonl: has no rows"]
    monkeypatch.setattr(rows, "MAX_LINE_BYTES", 1000)
    assert problems(jev_row(0, state="x" * 2000), tmp_path=tmp_path) == ["f.jsonl:1: the line has more than 1000 bytes"]


def test_families_choose_rows_and_an_unknown_one_is_told_with_those_there_are(tmp_path: Path) -> None:
    data = write(tmp_path / "f.jsonl", [jev_row(number) for number in range(6)])
    files, found = checked(data, families=("odd",))
    assert [row.id for row in rows.read(files, found, ("odd",))] == ["row-1", "row-3", "row-5"]
    with pytest.raises(RowsError, match="there are even, odd"):
        checked(data, families=("nix",))


def test_all_orderings_of_five_options_are_refused_before_anything_is_asked(tmp_path: Path) -> None:
    question = {**CHOICE, "criteria": {str(number): "text" for number in range(5)}}
    row = {name: value for name, value in jev_row(0, question=question).items() if name not in ("labels", "expected")}
    assert problems(row, tmp_path=tmp_path, orderings="all") == [
        "f.jsonl:1: decision: orderings all takes at most 4 options; there are 5"
    ]


def test_what_decide_cannot_ask_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    told = problems(CANONICAL, jev_row(0, state=""), tmp_path=tmp_path, surface="decide")
    assert told == [
        "f.jsonl:1: part: /decide takes strings as descriptions",
        "f.jsonl:1: stopped: /decide takes choices only",
        "f.jsonl:1: urgency: /decide takes choices only",
        "f.jsonl:2: state: must not be empty on /decide",
    ]


def test_a_file_that_changes_between_check_and_run_is_not_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "_KEPT_BYTES", 0)
    data = write(tmp_path / "f.jsonl", [jev_row(number) for number in range(3)])
    files, found = checked(data)
    assert [row.id for row in rows.read(files, found)] == ["row-0", "row-1", "row-2"]
    write(data, [jev_row(number) for number in range(4)])
    with pytest.raises(RowsError, match="has changed since it was checked"):
        list(rows.read(files, found))


def test_rows_that_are_kept_and_rows_that_are_read_again_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(tmp_path / "f.jsonl", [jev_row(0), CANONICAL, b"\n", SEMIF])
    files, kept = checked(data)
    monkeypatch.setattr(rows, "_KEPT_BYTES", 600)
    _, streamed = checked(data)
    assert kept.kept is not None
    assert streamed.kept is None
    assert list(rows.read(files, kept)) == list(rows.read(files, streamed))
    assert kept.files == streamed.files


def test_the_index_spills_without_forgetting() -> None:
    index = Index(in_memory=10)
    for number in range(50):
        assert index.add((f"file {number % 3}", number), number)
    assert not index.add(("file 1", 1), 99)
    assert not index.add(("file 1", 49))
    assert [index.get((f"file {number % 3}", number)) for number in range(50)] == list(range(50))
    assert ("file 2", 49) not in index
    assert len(index) == 50
    index.close()


def test_orders_are_the_contract_s() -> None:
    assert plan.orders("choice", 3, "rotations") == ((0, 1, 2), (1, 2, 0), (2, 0, 1))
    assert plan.orders("choice", 3, "reverse") == ((0, 1, 2), (2, 1, 0))
    assert len(plan.orders("choice", 4, "all")) == 24
    assert plan.orders("choice", 4, "all")[0] == (0, 1, 2, 3)
    for kind, options in (("noul", 2), ("score", 4), ("choice", 1)):
        assert plan.orders(kind, options, "rotations") == (tuple(range(options)),)


def test_calls_are_packed_in_waves_as_the_contract_packs_them() -> None:
    question = {"type": "choice", "instructions": "?", "criteria": {"a": "1", "b": "2"}}
    noul = {"type": "noul", "instructions": "?"}
    questions = {f"f{number}": noul if number == 1 else question for number in range(5)}
    labels = {field: ("no", "yes") if field == "f1" else ("a", "b") for field in questions}
    packed = plan.calls(questions, labels, "rotations", 4)
    assert [[(item.field, item.name, item.ordering) for item in call.items] for call in packed] == [
        [("f0", "q1", 0), ("f1", "q2", 0), ("f2", "q3", 0), ("f3", "q4", 0)],
        [("f4", "q", 0)],
        [("f0", "q1", 1), ("f2", "q2", 1), ("f3", "q3", 1), ("f4", "q4", 1)],
    ]
    assert json.dumps(packed[2].questions["q1"]["criteria"]) == '{"b": "2", "a": "1"}'
    alone = plan.calls(questions, labels, "none", 1)
    assert [call.items[0].name for call in alone] == ["q"] * 5
    assert plan.calls(questions, labels, "none", 1) == plan.calls(questions, labels, "none", 1)
