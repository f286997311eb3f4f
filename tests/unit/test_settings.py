"""Settings (shared/settings.py): contract § Configuration, INV-6; trouble.md rank 48; design §6."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorer import engines
from scorer.engines.base import StartRefused
from shared.settings import (
    PREFIX,
    SETTINGS,
    SPARE_THREADS,
    ScorerSettings,
    Setting,
    SettingsError,
    WebSettings,
    unknown_names,
)

TOKEN = "t" * 31 + "!"
BY_NAME = {setting.name: setting for setting in SETTINGS}


def environ(**values: str) -> dict[str, str]:
    return {PREFIX + name: value for name, value in values.items()}


def web(**values: str) -> WebSettings:
    return WebSettings.from_env(environ(**{"API_TOKEN": TOKEN, **values}))


def scorer(**values: str) -> ScorerSettings:
    return ScorerSettings.from_env(environ(**values))


def read(setting: Setting, text: str) -> Any:
    tier = web if "web" in setting.tiers else scorer
    return getattr(tier(**{setting.name: text}), setting.field)


def refused(name: str, text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        read(BY_NAME[name], text)
    assert isinstance(caught.value, ValueError)  # contract: "a ValueError naming the variable"
    message = str(caught.value)
    assert message.startswith(PREFIX + name + " "), message
    assert caught.value.__suppress_context__
    return message


INTEGERS = {
    "MAX_TOKENS": 1,
    "MAX_DECISIONS": 1,
    "MAX_BODY_BYTES": 1,
    "MAX_QUEUE": 1,
    "MAX_CONCURRENT_DECISIONS": 0,
    "RELEASE_SLACK_MIB": 0,
    "NATIVE_MAX_OPTIONS": 1,
    "WORKERS": 1,
    "THREADS": 1,
    "LABELS_MAX_TOKENS": 1,
    "LABELS_CACHE_MIB": 0,
    "LABELS_BATCH_TOKENS": 1,
}
NUMBERS = ("VRAM_CAP_GIB", "REQUEST_BUDGET_S", "BODY_DEADLINE_S", "HANG_S", "LOAD_S", "DRAIN_S")
FLAGS = ("KEEP_VISION", "STRICT_MODEL", "ALLOW_SLOW_KERNELS")
CHOICES = {
    "SYSTEMONE_PROFILE": {"native", "jev"},
    "DEVICE": {"cuda", "cpu"},
    "METRICS": {"token", "open", "off"},
    "LOG_FORMAT": {"json", "text"},
    "LOG_LEVEL": {"DEBUG", "INFO", "WARNING", "ERROR"},
    "LABELS_DTYPE": {"auto", "float32", "bfloat16", "float16"},
}
TEXTS = (
    "CHECKPOINT",
    "RUN_DIR",
    "BIND",
    "PINS_FILE",
    "LABELS_MODEL_NAME",
    "LABELS_ADAPTER",
    "LABELS_MARKER",
    "LABELS_SYSTEM_PROMPT_FILE",
    "LABELS_RENDERER",
)


def test_every_setting_is_covered_by_a_table_of_this_file() -> None:
    covered = {"ENGINE", *INTEGERS, *NUMBERS, *FLAGS, *CHOICES, *TEXTS, "API_TOKEN", "API_TOKEN_FILE"}
    assert set(BY_NAME) <= covered, "a new setting needs its bad values here"
    assert len(BY_NAME) == len(SETTINGS)


@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "1.5",
        "8192.7",
        "1e3",
        "1_000",
        " 5 ",
        "5 ",
        "+5",
        "-1",
        "0x10",
        "٣",
        "²",
        "five",
        "nan",
        "inf",
        "5\n",
        "true",
    ],
)
def test_an_integer_is_ascii_digits_only(name: str, text: str) -> None:
    assert str(INTEGERS[name]) in refused(name, text)


@pytest.mark.parametrize(("name", "minimum"), INTEGERS.items())
def test_an_integer_below_its_minimum_is_refused_and_the_minimum_is_taken(name: str, minimum: int) -> None:
    if name == "THREADS":
        return  # its own rule is below
    assert read(BY_NAME[name], str(minimum)) == minimum
    assert type(read(BY_NAME[name], "0017")) is int
    if minimum:
        assert "at least 1" in refused(name, "0")


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "nan",
        "inf",
        "-inf",
        "infinity",
        "0",
        "0.0",
        "-1",
        "16GB",
        "1e3",
        "1_0",
        " 5",
        "+5",
        ".5",
        "5.",
        "1,5",
        "٣",
        "1" * 400,
    ],
)
def test_a_number_is_finite_and_above_zero(name: str, text: str) -> None:
    refused(name, text)


@pytest.mark.parametrize("name", NUMBERS)
def test_a_decimal_number_is_taken(name: str) -> None:
    assert read(BY_NAME[name], "7.25") == 7.25
    assert read(BY_NAME[name], "16") == 16.0


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("text", ["", "yes", "true", "on", "2", "00", "01", " 1", "no"])
def test_a_flag_is_0_or_1(name: str, text: str) -> None:
    refused(name, text)
    assert read(BY_NAME[name], "1") is True
    assert read(BY_NAME[name], "0") is False


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_is_one_of_its_words_exactly(name: str) -> None:
    for word in CHOICES[name]:
        assert read(BY_NAME[name], word) == word
        for wrong in (word.swapcase(), word + " ", ""):
            message = refused(name, wrong)
            assert all(allowed in message for allowed in CHOICES[name])


@pytest.mark.parametrize("text", ["", "Intern", "intern ", "sparrow,fake", "../x", "1x", "intern\n", "é", "x" * 42])
def test_an_engine_is_named_in_lower_case(text: str) -> None:
    refused("ENGINE", text)


def test_a_name_that_no_engine_has_is_refused_by_the_scorer_naming_the_variable() -> None:
    # Which engines exist is the registry's to say; the name itself is well formed.
    with pytest.raises(StartRefused, match=r"INTERN_DECISION_ENGINE.*nonesuch"):
        engines.create(scorer(ENGINE="nonesuch"))


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("text", ["", "a\nb", "a\x00b", "\t"])
def test_a_text_is_not_empty_and_has_no_control_characters(name: str, text: str) -> None:
    refused(name, text)


@pytest.mark.parametrize("text", ["nonsense", "127.0.0.1:http", "127.0.0.1:99999", "unix:", ":"])
def test_bind_is_host_and_port_or_a_unix_socket(text: str) -> None:
    refused("BIND", text)


@pytest.mark.parametrize(
    "text", ["127.0.0.1:8000", "0.0.0.0:80", "[::1]:8000", "localhost:8000", "unix:/run/intern-decision/web.sock"]
)
def test_a_good_bind_is_kept_as_it_is(text: str) -> None:
    assert web(BIND=text).bind == text


@pytest.mark.parametrize("name", ["MAX_QUEUE", "MAX_CONCURRENT_DECISIONS", "REQUEST_BUDGET_S", "BODY_DEADLINE_S"])
def test_a_value_that_the_service_could_not_work_with_is_refused_by_name_and_not_by_a_crash_later(name: str) -> None:
    # 10^17: the slot file's header has 32 bits for MAX_QUEUE, and no clock of the system waits for so many seconds.
    refused(name, "1" + "0" * 17)


# -- the defaults and the table ---


def test_the_contracts_defaults() -> None:
    w, s = web(), scorer()
    assert (w.max_decisions, w.max_body_bytes, w.max_queue) == (64, 1 << 20, 32)
    assert (s.max_tokens, s.release_slack_mib, s.keep_vision, s.device) == (8192, 512, False, "cuda")
    assert s.vram_cap_gib is None
    assert s.engine == "intern"  # fail-closed (design §4)
    assert str(s.checkpoint) == (
        "/hf/hub/models--internlm--Intern-Decision-4B/snapshots/0e5e6aa7d6d750e2b1504ba11a8136cb58aeb3cd"
    )


def test_the_starting_values_of_the_architecture_and_their_order() -> None:
    w, s = web(), scorer()
    assert (w.workers, w.threads, w.request_budget_s, w.body_deadline_s) == (2, 40, 60.0, 10.0)
    assert (s.hang_s, s.drain_s) == (120.0, 60.0)
    assert s.hang_s > w.request_budget_s
    assert w.systemone_profile is None
    assert not w.strict_model
    assert s.pins_file is None  # the built-in release alone
    assert s.allow_slow_kernels is False
    assert w.native_max_options == 16


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_row_is_well_formed_and_its_default_passes_its_own_parser(setting: Setting) -> None:
    assert setting.variable == f"INTERN_DECISION_{setting.name}"
    assert setting.name.isupper()
    assert setting.tiers
    assert set(setting.tiers) <= {"web", "scorer"}
    assert setting.help
    assert "\n" not in setting.help
    assert "|" not in setting.help  # it stands in a table
    if setting.default is not None:
        setting.parse(setting.default)


def test_each_tier_has_exactly_the_attributes_of_its_rows() -> None:
    for kind, tier in ((WebSettings, "web"), (ScorerSettings, "scorer")):
        rows = {setting.field for setting in SETTINGS if tier in setting.tiers} - {"api_token_file"}
        assert {field.name for field in dataclasses.fields(kind)} == rows


def test_a_tier_ignores_the_other_tiers_bad_values() -> None:
    scorer(API_TOKEN="short", MAX_QUEUE="x")
    web(MAX_TOKENS="x", ENGINE="x")


def test_settings_cannot_be_changed_after_the_start() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        web().max_queue = 1  # type: ignore[misc]


def test_without_an_argument_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(PREFIX + "API_TOKEN", TOKEN)
    monkeypatch.setenv(PREFIX + "MAX_QUEUE", "3")
    monkeypatch.setenv(PREFIX + "MAX_TOKENS", "5")
    monkeypatch.setenv(PREFIX + "MAX_TOKEN", "5")
    assert WebSettings.from_env().max_queue == 3
    assert ScorerSettings.from_env().max_tokens == 5
    assert unknown_names() == [PREFIX + "MAX_TOKEN"]


# -- the token (INV-6) ---

BAD_TOKENS = {
    "empty": "",
    "31 characters": "x" * 31,
    "a space": "x" * 31 + " x",
    "a trailing newline": "x" * 32 + "\n",
    "a tab": "x" * 32 + "\t",
    "DEL": "x" * 32 + "\x7f",
    "an accent": "x" * 32 + "é",
    "NUL": "x" * 32 + "\x00",
    "a leading space": " " + "x" * 32,
}


@pytest.mark.parametrize("token", BAD_TOKENS.values(), ids=BAD_TOKENS)
def test_a_bad_token_is_refused_and_never_shown(token: str) -> None:
    message = refused("API_TOKEN", token)
    assert "32 visible ASCII" in message
    assert "xxx" not in message


def test_a_token_of_32_visible_characters_is_taken_exactly() -> None:
    token = "".join(map(chr, range(33, 127)))
    assert web(API_TOKEN=token).api_token == token
    assert web(API_TOKEN=token[-32:]).api_token == token[-32:]


def test_a_token_must_be_given() -> None:
    with pytest.raises(SettingsError, match="INTERN_DECISION_API_TOKEN or INTERN_DECISION_API_TOKEN_FILE must be set"):
        WebSettings.from_env({})


def from_file(path: Path, content: bytes) -> WebSettings:
    path.write_bytes(content)
    return WebSettings.from_env(environ(API_TOKEN_FILE=str(path)))


@pytest.mark.parametrize("ending", [b"", b"\n", b"\r\n"])
def test_a_token_file_may_end_with_one_line_break(tmp_path: Path, ending: bytes) -> None:
    assert from_file(tmp_path / "token", TOKEN.encode() + ending).api_token == TOKEN


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"x" * 31 + b"\n",
        b"x" * 32 + b"\n\n",
        b"x" * 32 + b" \n",
        b"x" * 32 + b"\nsecond line",
        b" " + b"x" * 32,
        b"x" * 32 + b"\xff",
        "é".encode() * 32,
        b"\xef\xbb\xbf" + b"x" * 32,
        b"x" * 32 + b"\x00",
    ],
)
def test_a_token_file_with_anything_else_is_refused_by_name_without_showing_it(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(SettingsError) as caught:
        from_file(tmp_path / "token", content)
    assert str(caught.value).startswith("INTERN_DECISION_API_TOKEN_FILE")
    assert str(tmp_path / "token") in str(caught.value)
    assert "xxx" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_token_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(SettingsError, match=f"^INTERN_DECISION_API_TOKEN_FILE: {path}"):
            WebSettings.from_env(environ(API_TOKEN_FILE=str(path)))


def test_a_token_and_a_token_file_together_are_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    with pytest.raises(SettingsError, match="only one"):
        WebSettings.from_env(environ(API_TOKEN=TOKEN, API_TOKEN_FILE=str(tmp_path / "token")))


# -- THREADS and unknown names ---


def test_threads_are_at_least_max_queue_and_eight_more() -> None:
    assert SPARE_THREADS == 8
    assert web(MAX_QUEUE="5").threads == 13
    assert web(MAX_QUEUE="5", THREADS="13").threads == 13
    assert web(MAX_QUEUE="5", THREADS="99").threads == 99
    with pytest.raises(SettingsError, match=r"^INTERN_DECISION_THREADS must be at least MAX_QUEUE \+ 8 = 13"):
        web(MAX_QUEUE="5", THREADS="12")


def test_an_unknown_name_is_told_and_stops_nothing() -> None:
    names = environ(MAX_QUEU="1", max_queue="2", API_TOKEN=TOKEN) | {"INTERN_DECISION": "x", "OTHER_MAX_QUEUE": "3"}
    assert unknown_names(names) == ["INTERN_DECISION_MAX_QUEU", "INTERN_DECISION_max_queue"]
    WebSettings.from_env(names)


def test_a_known_name_of_the_other_tier_is_not_unknown() -> None:
    assert unknown_names({setting.variable: "" for setting in SETTINGS}) == []


@pytest.mark.parametrize("text", ["render", "a.b", ":f", "a:", "a b:f", "a:f()", "a.:f", "../a:f", "a:f:g", "1a:f"])
def test_a_renderer_is_a_module_and_a_function(text: str) -> None:
    refused("LABELS_RENDERER", text)
    assert scorer(LABELS_RENDERER="a.b_1:f").labels_renderer == "a.b_1:f"


@given(st.sampled_from(SETTINGS), st.text(max_size=40))
def test_any_text_is_a_value_or_a_settings_error_that_names_the_variable(setting: Setting, text: str) -> None:
    values = environ(**{setting.name: text})
    if setting.name not in ("API_TOKEN", "API_TOKEN_FILE"):
        values |= environ(API_TOKEN=TOKEN)
    for kind in (WebSettings, ScorerSettings):
        assert complaint(kind, values).startswith((setting.variable, "INTERN_DECISION_API_TOKEN", "none"))


def complaint(kind: type[WebSettings] | type[ScorerSettings], values: dict[str, str]) -> str:
    """The message of the refusal, or ``none``."""
    try:
        kind.from_env(values)
    except SettingsError as error:
        return str(error)
    return "none"
