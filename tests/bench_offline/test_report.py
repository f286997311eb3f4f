"""The report: its text against a golden file, its pictures opened, its page self-contained, and planted faults
shown."""

from __future__ import annotations

import base64
import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from scorer.bench import plots, report
from scorer.bench.document import clip, leaves
from scorer.bench.findings import findings
from scorer.bench.measures import MeasureError, summarise
from scorer.bench.records import Record
from scorer.bench.report import FILES, gates, render, write
from shared import jsonio
from tests.bench_offline.made import LABELS, MANIFEST, binary, drifting, engine, position_biased, record, spread

GOLDEN = Path(__file__).with_name("golden_report.md")
PICTURES = ("reliability.png", "coverage.png", "latency.png", "confusion.png")


def golden_records() -> list[Record]:
    """Made without a random number, so that every number of the report can be recounted: every type, two families, an
    unlabelled row, another order, calls of two questions."""
    rows = []
    for index in range(24):
        sure, right = 0.5 + 0.02 * index, index % 4 > 0
        chosen = index % 3 if right else (index + 1) % 3
        rows.append(
            record(
                spread(sure, chosen=chosen),
                LABELS[index % 3],
                row=f"colour-{index:02}",
                inference_ms=5.0 + index,
                total_ms=6.0 + index,
            )
        )
        if index < 6:
            rows.append(
                replace(
                    rows[-1],
                    ordering=1,
                    order=(2, 1, 0),
                    decision=LABELS[index % 2],
                    probabilities=spread(0.6, chosen=index % 2),
                    prompt_sha256=f"turned-{index}",
                )
            )
    for index in range(8):
        shared: dict[str, Any] = {
            "row": f"both-{index}",
            "family": "pair",
            "file": "more.jsonl",
            "questions": 2,
            "prompt_sha256": f"both-{index}",
            "inference_ms": 40.0,
            "total_ms": 42.5,
        }
        noul = {"no": 0.25, "yes": 0.75}
        rows.append(record(noul, "yes" if index % 2 else "no", field="urgent", type="noul", **shared))
        levels = {"0": 0.125, "1": 0.25, "2": 0.625}
        rows.append(record(levels, str(index % 3), field="level", type="score", score=1.5, **shared))
    rows.append(record(spread(0.7), None, row="open", family=None))
    return rows


def text_of(records: Sequence[Record], manifest: Mapping[str, Any] = MANIFEST) -> str:
    return render(manifest, records)["report.md"].decode()


# -- the text ---


def test_the_report_of_known_records_is_the_golden_one() -> None:
    """After a wanted change: ``python -m tests.bench_offline.test_report`` writes it anew; read the difference."""
    assert text_of(golden_records(), {**MANIFEST, "failed": {"broken_answer": 2}}) == GOLDEN.read_text(encoding="utf-8")


def test_the_same_records_give_the_same_bytes() -> None:
    assert render(MANIFEST, golden_records()) == render(MANIFEST, golden_records())


def test_metrics_json_is_the_summary_and_the_missing_answers() -> None:
    rows = golden_records()
    found = jsonio.loads(render({**MANIFEST, "failed": {"broken_answer": 2}}, rows)["metrics.json"])
    assert found == {**summarise(rows), "failed": {"broken_answer": 2}}


def test_the_page_says_what_the_text_says() -> None:
    files = render(MANIFEST, golden_records())
    page, text = Page.of(files["report.html"]), files["report.md"].decode()
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("| ---")]
    assert lines == ["| " + " | ".join(cells).replace("\\", "\\\\") + " |" for cells in page.rows]


def test_no_text_of_a_caller_is_taken_for_markup() -> None:
    evil = "<script>alert(1)</script>|`x`*b*\n# h\u202e"
    rows = [
        record({evil: 0.9, "ok": 0.1}, "ok", row=f"{evil}{index}", family=evil, file=f"{evil}.jsonl", field=evil)
        for index in range(3)
    ]
    files = render({"engine": {evil: evil}}, rows)
    text = files["report.md"].decode()
    assert b"<script" not in files["report.html"]
    assert "<script" not in text
    assert not re.search(r"^# h", text, re.MULTILINE)
    assert "\u202e" not in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1


def test_of_callers_texts_only_ids_labels_and_names_can_be_shown() -> None:
    """A record holds nothing else; this test is what a new field has to pass."""
    texts = {"row", "file", "field", "family", "type", "labels", "expected", "decision", "prompt_sha256"}
    numbers = {"ordering", "order", "probabilities", "score", "confidence", "input_tokens", "questions"}
    assert {field.name for field in fields(Record)} == texts | numbers | {"inference_ms", "total_ms"}
    assert all(one.to_json().keys() <= texts | numbers | {"inference_ms", "total_ms"} for one in golden_records())


def test_a_secret_in_a_manifest_is_not_shown() -> None:
    manifest = {
        "url": "http://127.0.0.1:1/",
        "api_key": "s3cret",
        "headers": {"Authorization": "s3cret", "token": "s3cret"},
    }
    assert all(b"s3cret" not in data for data in render(manifest, golden_records()).values())
    assert dict(leaves({"max_tokens": 5, "input_tokens": 6})) == {"max_tokens": "5", "input_tokens": "6"}


def test_a_manifests_lists_are_short() -> None:
    manifest = {
        "data": [{"file": "a.jsonl", "rows": 3}],
        "families": ["x", "y"],
        "many": list(range(11)),
        "none": None,
        "no": [],
    }
    assert dict(leaves(manifest)) == {
        "data.0.file": "a.jsonl",
        "data.0.rows": "3",
        "families": "x, y",
        "many": "11 entries",
    }


def test_long_text_is_clipped() -> None:
    assert clip("x" * 80) == "x" * 80
    assert clip("x" * 10_000) == "x" * 79 + "…"


# -- planted faults ---


def test_an_honest_engine_has_no_finding() -> None:
    rows = engine(400, 0.8, 0.8)
    assert "Nothing out of the ordinary." in text_of(rows)


def test_a_position_biased_engine_is_shown() -> None:
    text = text_of(list(position_biased(30)))
    assert "- Position: another order of the options moved the decision of 30 of 30 questions." in text
    assert "100.0 % were for the option asked first and 0.0 % for the one asked last" in text
    assert gates(summarise(list(position_biased(30))), min_accuracy=None, max_ece=None, max_flips=0.1) == [
        "reordering the options moved 1.0000 of the answers, above 0.1"
    ]


def test_a_drifting_engine_is_shown() -> None:
    text = text_of(drifting(40))
    assert "- Drift: from the first half of the run to the second the accuracy went from 100.0 % to 50.0 %" in text
    assert "the mean largest probability went from 90.0 % to 55.0 %" in text


def test_an_engine_that_answers_one_prompt_in_two_ways_is_shown() -> None:
    rows = [record(spread(p), None, row=str(p), prompt_sha256="same") for p in (0.8, 0.9)]
    assert "- Not repeatable: 1 of 1 prompts" in text_of(rows)


def test_an_overconfident_engine_is_shown_and_fails_its_gate() -> None:
    rows = engine(200, 0.97, 0.6)
    assert "- Overconfident: the mean largest probability is 97.0 %" in text_of(rows)
    assert len(gates(summarise(rows), min_accuracy=None, max_ece=0.1, max_flips=None)) == 1


def test_an_underconfident_engine_is_shown() -> None:
    assert "- Underconfident:" in text_of(engine(200, 0.5, 0.95))


def test_lost_answers_are_counted_first_of_all() -> None:
    """An engine that loses an option gives answers that the run refuses; what is left may look fine."""
    text = text_of(engine(400, 0.8, 0.8), {**MANIFEST, "failed": {"broken_answer": 3, "timeout": 40}})
    assert "- Failed: 43 answers did not come and are in no measure below" in text
    assert text.index("| timeout | 40 |") < text.index("| broken_answer | 3 |") < text.index("## Run")


def test_a_run_that_was_stopped_is_not_taken_for_a_whole_one() -> None:
    assert "- Unfinished: the run's status is running" in text_of(engine(40, 0.8, 0.8), {"status": "running"})
    assert "Unfinished" not in text_of(engine(40, 0.8, 0.8), {"status": "finished"})


def test_contradictions_are_shown() -> None:
    rows = [
        record({"a": 0.4, "b": 0.6}, "a", row="1", decision="a"),
        record({"a": 0.6, "b": 0.3}, "a", row="2"),
        record({"a": 1.0, "b": 0.0}, "b", row="3"),
        record({"a": 1.0, "b": 0.0}, None, row="4"),
    ]
    found = findings(summarise(rows), {})
    assert [line.split(":")[0] for line in found[:4]] == [
        "Unlabelled",
        "Contradiction",
        "Contradiction",
        "Certain and wrong",
    ]


# -- gates ---


def test_gates_hold_at_their_value_and_fail_beyond_it() -> None:
    metrics = summarise(binary([0.8] * 10, [True] * 8 + [False] * 2))
    assert gates(metrics, min_accuracy=0.8, max_ece=metrics["ece_10"], max_flips=None) == []
    assert gates(metrics, min_accuracy=0.81, max_ece=None, max_flips=None) == ["accuracy 0.8000 is below 0.81"]
    assert gates(metrics, min_accuracy=None, max_ece=-1.0, max_flips=None)[0].endswith("(10 bins) is above -1")
    assert gates(metrics, min_accuracy=None, max_ece=None, max_flips=None) == []


def test_a_gate_without_its_measure_fails() -> None:
    found = gates(summarise([record(spread(0.8), None)]), min_accuracy=0.0, max_ece=1.0, max_flips=1.0)
    assert [line.split(":")[0] for line in found] == [
        "min-accuracy cannot be checked",
        "max-ece cannot be checked",
        "max-flips cannot be checked",
    ]


def test_gates_read_the_metrics_of_a_file_too() -> None:
    found = jsonio.loads(render(MANIFEST, golden_records())["metrics.json"])
    assert len(gates(found, min_accuracy=0.99, max_ece=0.01, max_flips=0.01)) == 3


# -- the files ---


def test_every_file_is_written(tmp_path: Path) -> None:
    out = tmp_path / "new" / "report"
    write(out, MANIFEST, golden_records())
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == render(MANIFEST, golden_records())


def test_nothing_is_overwritten_without_being_asked(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(b"the run's")
    (tmp_path / "metrics.json").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match=r"already holds metrics\.json"):
        write(tmp_path, MANIFEST, golden_records())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.json", "run.json"]
    assert (tmp_path / "metrics.json").read_bytes() == b"mine"


def test_a_report_written_anew_keeps_no_picture_of_the_old_one(tmp_path: Path) -> None:
    write(tmp_path, MANIFEST, golden_records())
    write(tmp_path, MANIFEST, [record(spread(0.8), None)], overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["report.md", "metrics.json", "latency.png", "report.html"]
    )


def test_nothing_is_written_or_removed_when_the_records_cannot_be_measured(tmp_path: Path) -> None:
    write(tmp_path, MANIFEST, golden_records())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    one = record(spread(0.8), "red")
    with pytest.raises(MeasureError):
        write(tmp_path, MANIFEST, [one, one], overwrite=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_without_any_answer_has_a_report() -> None:
    files = render({"failed": {"timeout": 3}}, [])
    assert set(files) == {"report.md", "metrics.json", "report.html"}
    assert "No labelled answer" in files["report.md"].decode()


# -- the page ---


class Page(HTMLParser):
    """What a browser would find: tags that close, rows of tables, everything it would fetch."""

    VOID = frozenset({"meta", "img", "br", "link", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.rows: list[list[str]] = []

    @classmethod
    def of(cls, data: bytes) -> Page:
        page = cls()
        page.feed(data.decode())
        page.close()
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            if name in ("src", "href", "srcset", "data", "action", "poster", "background"):
                self.fetched.append(value or "")
            if name == "id":
                self.ids.append(value or "")
        if tag == "tr":
            self.rows.append([])
        if tag in ("th", "td"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("th", "td"):
            self.rows[-1][-1] += data


def test_the_page_is_whole_and_refers_to_nothing_outside_itself() -> None:
    data = render(MANIFEST, golden_records())["report.html"]
    page = Page.of(data)
    assert page.open == []
    assert page.tags.isdisjoint({"script", "link", "iframe", "object", "embed", "base", "form"})
    inside = [f"#{name}" for name in page.ids]
    assert all(target in inside or target.startswith("data:image/png;base64,") for target in page.fetched)
    assert re.findall(rb"https?:|url\(|@import", data) == []
    assert b"default-src 'none'" in data


def test_the_pages_pictures_are_the_files() -> None:
    files = render(MANIFEST, golden_records())
    images = [target for target in Page.of(files["report.html"]).fetched if target.startswith("data:")]
    assert [base64.b64decode(target.split(",")[1]) for target in images] == [files[name] for name in PICTURES]


# -- the pictures ---


def drawn(rows: Sequence[Record]) -> dict[str, Figure]:
    times = {"engine": [one.inference_ms for one in rows], "whole": [one.total_ms for one in rows]}
    return plots.draw(summarise(rows), times)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_opens_and_is_not_empty(name: str) -> None:
    with Image.open(io.BytesIO(render(MANIFEST, golden_records())[name])) as image:
        image.load()
        assert image.format == "PNG"
        assert min(image.size) > 300
        pixels = np.asarray(image.convert("L"))
    assert pixels.std() > 10
    assert 0.005 < float((pixels < 128).mean()) < 0.9


@pytest.mark.parametrize(
    ("name", "x", "y"),
    [
        ("reliability.png", "largest probability", "accuracy"),
        ("coverage.png", "coverage", "accuracy"),
        ("latency.png", "milliseconds a call", "share of the calls"),
        ("confusion.png", "decision", "expected"),
    ],
)
def test_a_picture_names_its_axes(name: str, x: str, y: str) -> None:
    axes = drawn(golden_records())[name].axes[0]
    assert (axes.get_xlabel(), axes.get_ylabel()) == (x, y)
    assert axes.get_title()


def test_the_reliability_curve_is_drawn_from_the_measures() -> None:
    rows = golden_records()
    axes = drawn(rows)["reliability.png"].axes[0]
    curve = next(line for line in axes.lines if line.get_marker() == "o")
    expected = summarise(rows)["reliability"]
    assert np.asarray(curve.get_xdata()) == pytest.approx([one["mean_confidence"] for one in expected])
    assert np.asarray(curve.get_ydata()) == pytest.approx([one["accuracy"] for one in expected])
    assert axes.get_xlim() == (0.0, 1.0)


def test_the_coverage_curve_ends_at_the_accuracy_of_all_answers() -> None:
    rows = golden_records()
    curve = drawn(rows)["coverage.png"].axes[0].lines[0]
    x, y = np.asarray(curve.get_xdata()), np.asarray(curve.get_ydata())
    assert x[-1] == 1.0
    assert y[-1] == summarise(rows)["accuracy"]


def test_the_confusions_ticks_are_its_labels_and_its_numbers_the_counts() -> None:
    axes = drawn(golden_records())["confusion.png"].axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == sorted(LABELS)
    assert sum(int(text.get_text()) for text in axes.texts) == 24


def test_a_latency_of_zero_is_drawn() -> None:
    figure = plots.latency({"engine": [0.0, 0.0], "whole": [0.0, 1.0]})
    assert plots.png(figure)


def test_labels_that_look_like_mathematics_or_have_no_glyph_are_drawn() -> None:
    labels = ["$\\frac{1}{$", "選択肢", "🙂", "a" * 300]
    rows = [
        record(spread(0.9, labels, chosen=index), labels[index], row=str(index), family="$x_{$ 科")
        for index in range(4)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        files = render(MANIFEST, rows)
    with Image.open(io.BytesIO(files["confusion.png"])) as image:
        image.load()
        assert max(image.size) < 2000


@pytest.mark.parametrize("rows", [binary([0.7], [True]), binary([0.7], [False]), engine(40, 1.0, 1.0)])
def test_extreme_runs_have_pictures(rows: list[Record]) -> None:
    assert set(render(MANIFEST, rows)) == set(FILES)


def test_no_figure_stays_behind() -> None:
    import matplotlib.pyplot as plt

    render(MANIFEST, golden_records())
    assert plt.get_fignums() == []


if __name__ == "__main__":
    GOLDEN.write_bytes(report.render({**MANIFEST, "failed": {"broken_answer": 2}}, golden_records())["report.md"])
