"""Logging (shared/logs.py): trouble.md rank 47; architecture.md §1.15; failure test 18."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable, Iterator

import pytest

from shared import logs

SECRET = "secret-STATE-123"
FORGED = "line one\n2026-01-01T00:00:00.000Z critical web: forged\r\nthird"


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., io.StringIO]]:
    """Configures logging onto a string; everything is as before at the end."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    monkeypatch.setattr(logging, "raiseExceptions", logging.raiseExceptions)

    def configure(log_format: str, level: str = "INFO") -> io.StringIO:
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        logs.configure(log_format, level)
        return stream

    yield configure
    root.handlers[:], root.level = before[0], before[1]
    root.setLevel(before[1])


def failing() -> BaseException:
    def innermost() -> None:
        raise RuntimeError(f"boom /srv/models/x {SECRET}")

    try:
        innermost()
    except RuntimeError as error:
        return error
    raise AssertionError


def test_frames_tell_the_type_and_the_places_and_not_the_message() -> None:
    told = logs.frames(failing())
    assert told["exception"] == "RuntimeError"
    assert told["frames"][-1].endswith(" innermost")
    assert told["frames"][0].endswith(" failing")
    assert ":" in told["frames"][0]
    assert SECRET not in json.dumps(told)


def test_frames_of_an_exception_without_a_traceback_are_empty() -> None:
    assert logs.frames(KeyError(SECRET)) == {"exception": "KeyError", "frames": []}


def test_a_json_line_has_time_level_logger_event_and_fields(configured: Callable[..., io.StringIO]) -> None:
    stream = configured("json")
    logging.getLogger("web.access").info("request", extra={"fields": {"request_id": "r1", "ms": 1.5, "slot": 0}})
    line = json.loads(stream.getvalue())
    assert list(line) == ["time", "level", "logger", "event", "request_id", "ms", "slot"]
    assert (line["level"], line["logger"], line["event"], line["ms"]) == ("info", "web.access", "request", 1.5)


def test_a_text_line_has_the_same_in_words(configured: Callable[..., io.StringIO]) -> None:
    stream = configured("text")
    logging.getLogger("web.access").warning("request %s", "done", extra={"fields": {"request_id": "r1", "ms": 1.5}})
    assert stream.getvalue().endswith(' warning web.access: request done request_id="r1" ms=1.5\n')


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_the_time_is_utc_with_milliseconds(configured: Callable[..., io.StringIO], log_format: str) -> None:
    stream = configured(log_format)
    record = logging.LogRecord("x", logging.INFO, "f", 1, "event", (), None)
    for created, expected in (
        (0.007, "1970-01-01T00:00:00.007Z"),
        (86400.999, "1970-01-02T00:00:00.999Z"),
        (1.0, "1970-01-01T00:00:01.000Z"),
    ):
        record.created, record.msecs = created, round(1000 * (created % 1))
        logging.getLogger().handlers[0].handle(record)
        assert expected in stream.getvalue().splitlines()[-1]


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_line_break_in_a_message_or_a_field_cannot_forge_a_line(
    configured: Callable[..., io.StringIO], log_format: str
) -> None:
    stream = configured(log_format)
    logging.getLogger("x").error(FORGED, extra={"fields": {"field": FORGED}})
    written = stream.getvalue()
    assert written.count("\n") == 1
    assert written.endswith("\n")
    assert "\r" not in written


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_failure_is_one_record_with_its_frames_and_without_its_message(
    configured: Callable[..., io.StringIO], log_format: str
) -> None:
    stream = configured(log_format)
    try:
        raise failing()
    except RuntimeError:
        logging.getLogger("x").exception("it failed")
    written = stream.getvalue()
    assert written.count("\n") == 1
    assert "RuntimeError" in written
    assert "innermost" in written
    assert SECRET not in written
    assert "Traceback" not in written


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_records_below_the_level_are_not_written(configured: Callable[..., io.StringIO], log_format: str) -> None:
    stream = configured(log_format, "WARNING")
    logging.getLogger("x").info("quiet")
    logging.getLogger("x").warning("loud")
    assert stream.getvalue().count("\n") == 1
    assert "loud" in stream.getvalue()


def test_configuring_again_replaces_the_handler(configured: Callable[..., io.StringIO]) -> None:
    configured("text")
    stream = configured("json")
    logging.getLogger("x").info("once")
    assert stream.getvalue().count("once") == 1
    assert len(logging.getLogger().handlers) == 1


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_record_with_a_lone_surrogate_is_still_written(
    configured: Callable[..., io.StringIO], log_format: str
) -> None:
    # A file name may hold one (os.fsdecode); losing the line that tells of the trouble would hide it.
    stream = configured(log_format)
    logging.getLogger("x").error("cannot open it", extra={"fields": {"file": "a\udcffb"}})
    assert "cannot open it" in stream.getvalue()


class _Full(io.StringIO):
    def write(self, _text: str) -> int:
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_a_full_disk_or_a_closed_stderr_fails_no_request(
    configured: Callable[..., io.StringIO], monkeypatch: pytest.MonkeyPatch, log_format: str
) -> None:
    stream = configured(log_format)
    stream.close()
    logging.getLogger("x").error("to a closed stream")
    monkeypatch.setattr(sys, "stderr", _Full())
    logs.configure(log_format, "INFO")
    logging.getLogger("x").error("to a full disk")
