"""Settings: the only module that reads the environment.

Every setting is one row of :data:`SETTINGS`: its name (without the prefix ``INTERN_DECISION_``), default, parser, the
tiers that read it and a sentence for the README, whose table a test compares with these rows. A value that is set but
bad stops the start with a :class:`SettingsError` naming the variable; a name with the prefix that no row has is warned
about.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared import aliases, parsers
from shared.labels_settings import LABELS_SETTINGS
from shared.setting import PREFIX, SCORER, WEB, Setting

__all__ = ["PREFIX", "SETTINGS", "ScorerSettings", "Setting", "SettingsError", "WebSettings", "unknown_names"]

#: Threads beyond MAX_QUEUE, for the 429s and /health while every slot waits (architecture.md §1.12).
SPARE_THREADS = 8
#: More slots would need more threads than a worker can have.
_MOST_SLOTS = 1000
_DAY_S = 86_400


class SettingsError(ValueError):
    """A setting has a bad value; the message starts with the variable's full name and never shows a secret."""


_CHECKPOINT = "/hf/hub/models--internlm--Intern-Decision-4B/snapshots/0e5e6aa7d6d750e2b1504ba11a8136cb58aeb3cd"
_BOTH = (WEB, SCORER)

SETTINGS: tuple[Setting, ...] = (
    Setting("API_TOKEN", None, parsers.token, (WEB,), "the bearer token, at least 32 visible ASCII characters"),
    Setting(
        "API_TOKEN_FILE",
        None,
        parsers.path,
        (WEB,),
        "a file that holds the token instead (one trailing line break is cut)",
    ),
    Setting(
        "ENGINE",
        "intern",
        parsers.name,
        (SCORER,),
        "which engine scores: `intern`, `labels`, `sparrow`, or `fake` (tests)",
    ),
    Setting(
        "SYSTEMONE_PROFILE",
        None,
        parsers.choice("native", "jev"),
        (WEB,),
        "profile of `/v1/systemone`; unset takes the engine's own",
    ),
    Setting(
        "STRICT_MODEL",
        "0",
        parsers.flag,
        (WEB,),
        "1 refuses a `model` on the `/v1` routes that names neither the served model nor a Jev alias",
    ),
    Setting(
        "CHECKPOINT",
        _CHECKPOINT,
        parsers.path,
        (SCORER,),
        "snapshot directory of the `intern` engine, or the model's directory of the `labels` engine",
    ),
    Setting(
        "PINS_FILE",
        None,
        parsers.path,
        (SCORER,),
        "JSON file that pins another release for the `intern` engine: name, revision, sha256",
    ),
    Setting(
        "ALLOW_SLOW_KERNELS",
        "0",
        parsers.flag,
        (SCORER,),
        "1 lets the `intern` engine start on CUDA without flash-linear-attention or causal-conv1d",
    ),
    Setting("DEVICE", "cuda", parsers.choice("cuda", "cpu"), (SCORER,), "device of the `intern` and `labels` engines"),
    Setting(
        "VRAM_CAP_GIB", None, parsers.number(100_000), (SCORER,), "cap on torch's CUDA memory in GiB; unset is uncapped"
    ),
    Setting(
        "RELEASE_SLACK_MIB",
        "512",
        parsers.integer(0),
        (SCORER,),
        "reserved CUDA memory above the baseline, in MiB, that a call may leave behind",
    ),
    Setting("KEEP_VISION", "0", parsers.flag, (SCORER,), "1 keeps the vision tower in memory"),
    Setting(
        "MAX_TOKENS",
        "8192",
        parsers.integer(1),
        (SCORER,),
        "tokens of one call, its state and all its questions; over it is a 422",
    ),
    Setting(
        "MAX_DECISIONS",
        "64",
        parsers.integer(1),
        (WEB,),
        "orderings scored for one `/decide` or `/decide/shared` request",
    ),
    Setting(
        "NATIVE_MAX_OPTIONS",
        "16",
        parsers.integer(1),
        (WEB,),
        "options of one question in the `native` profile, up to the engine's own limit",
    ),
    Setting(
        "MAX_BODY_BYTES",
        "1048576",
        parsers.integer(1),
        (WEB,),
        "bytes of a request body, before and after decompression",
    ),
    Setting(
        "MAX_QUEUE",
        "32",
        parsers.integer(1, _MOST_SLOTS),
        (WEB,),
        "POSTs in progress at once over all workers; the next is a 429",
    ),
    Setting(
        "MAX_CONCURRENT_DECISIONS",
        "0",
        parsers.integer(0, _MOST_SLOTS),
        (WEB,),
        "requests in progress at once on `/v1/decisions` and `/v1/systemone` together; the next is a 503; 0 is no cap",
    ),
    Setting(
        "RUN_DIR", "/run/intern-decision", parsers.path, _BOTH, "directory of the socket and the slot file, mode 0750"
    ),
    Setting("BIND", "127.0.0.1:8000", parsers.bind, (WEB,), "where gunicorn listens: host:port or unix:PATH"),
    Setting("WORKERS", "2", parsers.integer(1, 1000), (WEB,), "gunicorn worker processes"),
    Setting(
        "THREADS",
        None,
        parsers.integer(1, 2 * _MOST_SLOTS),
        (WEB,),
        "threads of one worker, at least MAX_QUEUE + 8; unset is MAX_QUEUE + 8",
    ),
    Setting(
        "REQUEST_BUDGET_S",
        "60",
        parsers.number(_DAY_S),
        _BOTH,
        "seconds from a request's start to its answer; over it is a 504",
    ),
    Setting(
        "BODY_DEADLINE_S",
        "10",
        parsers.number(_DAY_S),
        (WEB,),
        "seconds in which a request's body must arrive; over it is a 408",
    ),
    Setting(
        "HANG_S",
        "120",
        parsers.number(_DAY_S),
        (SCORER,),
        "seconds after which one running job counts as hung and the scorer exits 70",
    ),
    Setting("LOAD_S", "600", parsers.number(_DAY_S), (SCORER,), "seconds for loading the engine; then it exits 70"),
    Setting("DRAIN_S", "60", parsers.number(_DAY_S), (SCORER,), "seconds for queued jobs to finish after SIGTERM"),
    Setting(
        "METRICS",
        "token",
        parsers.choice("token", "open", "off"),
        (WEB,),
        "who may read `/metrics`: `token` the bearer's holder, `open` anyone, `off` nobody, and nothing is counted",
    ),
    Setting("LOG_FORMAT", "json", parsers.choice("json", "text"), _BOTH, "form of the log lines on stderr"),
    Setting(
        "LOG_LEVEL",
        "INFO",
        parsers.choice("DEBUG", "INFO", "WARNING", "ERROR"),
        _BOTH,
        "least severe level that is logged",
    ),
    *LABELS_SETTINGS,
)


def _read(tier: str, environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for setting in SETTINGS:
        if tier not in setting.tiers:
            continue
        try:
            variable, text = aliases.given(setting, environ)
        except ValueError as error:
            raise SettingsError(str(error)) from None
        text = setting.default if text is None else text
        try:
            values[setting.field] = None if text is None else setting.parse(text)
        except ValueError as error:
            raise SettingsError(f"{variable} {error}") from None
    return values


@dataclass(frozen=True)
class WebSettings:
    """Settings of the web tier; one attribute a row of :data:`SETTINGS`, in the units of its help text."""

    api_token: str
    systemone_profile: str | None
    strict_model: bool
    max_decisions: int
    native_max_options: int
    max_body_bytes: int
    max_queue: int
    max_concurrent_decisions: int
    run_dir: Path
    bind: str
    workers: int
    threads: int
    request_budget_s: float
    body_deadline_s: float
    metrics: str
    log_format: str
    log_level: str

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> WebSettings:
        """Read and check the web tier's settings. Raises :class:`SettingsError` naming the variable."""
        values = _read(WEB, os.environ if environ is None else environ)
        values["api_token"] = _the_token(values.pop("api_token"), values.pop("api_token_file"))
        least = values["max_queue"] + SPARE_THREADS
        if values["threads"] is None:
            values["threads"] = least
        elif values["threads"] < least:
            raise SettingsError(f"{PREFIX}THREADS must be at least MAX_QUEUE + {SPARE_THREADS} = {least}")
        return cls(**values)


@dataclass(frozen=True)
class ScorerSettings:
    """Settings of the scorer; one attribute a row of :data:`SETTINGS`, in the units of its help text."""

    engine: str
    checkpoint: Path
    pins_file: Path | None
    allow_slow_kernels: bool
    device: str
    vram_cap_gib: float | None
    release_slack_mib: int
    keep_vision: bool
    max_tokens: int
    run_dir: Path
    request_budget_s: float
    hang_s: float
    load_s: float
    drain_s: float
    log_format: str
    log_level: str
    labels_model_name: str | None
    labels_dtype: str
    labels_adapter: str | None
    labels_marker: str | None
    labels_system_prompt_file: Path | None
    labels_renderer: str
    labels_max_tokens: int | None
    labels_cache_mib: int
    labels_batch_tokens: int

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> ScorerSettings:
        """Read and check the scorer's settings. Raises :class:`SettingsError` naming the variable."""
        return cls(**_read(SCORER, os.environ if environ is None else environ))


def unknown_names(environ: Mapping[str, str] | None = None) -> list[str]:
    """Variables with our prefix that no setting has: most likely a typing error, so each tier warns about them."""
    known = {setting.variable for setting in SETTINGS}
    names = os.environ if environ is None else environ
    return sorted(name for name in names if name.startswith(PREFIX) and name not in known)


def _the_token(token: str | None, file: Path | None) -> str:
    if (token is None) == (file is None):
        raise SettingsError(f"{PREFIX}API_TOKEN or {PREFIX}API_TOKEN_FILE must be set, and only one of them")
    if token is not None:
        return token
    assert file is not None
    try:
        text = file.read_text("ascii", "surrogateescape")
    except OSError as error:
        raise SettingsError(f"{PREFIX}API_TOKEN_FILE: {file}: {error.strerror}") from None
    try:
        return parsers.token(re.sub(r"\r?\n\Z", "", text))
    except ValueError as error:
        raise SettingsError(f"{PREFIX}API_TOKEN_FILE: the token in {file} {error}") from None
