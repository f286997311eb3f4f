"""Names of granite-switch-decision's settings that stand for ours, so that its environments work unchanged. Pure.

A test compares the README's table with :data:`ALIASES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from shared.setting import Setting

__all__ = ["ALIASES", "Alias", "given"]


@dataclass(frozen=True)
class Alias:
    """``variable`` (without our prefix) sets the setting ``name``; ``convert`` makes its text the setting's text, or
    None for unset, or raises ValueError with a rule that reads on after the variable's name."""

    variable: str
    name: str
    convert: Callable[[str], str | None] = str


def _port(text: str) -> str:
    return f"127.0.0.1:{text}"


def _system_prompt(text: str) -> None:
    if text != "0":
        raise ValueError(
            "must be 0: the text of the trained system prompt is not part of this project; put it into a file and name "
            "that in INTERN_DECISION_LABELS_SYSTEM_PROMPT_FILE"
        )


ALIASES = (
    Alias("MODEL_DIR", "CHECKPOINT"),
    Alias("SERVED_MODEL_NAME", "LABELS_MODEL_NAME"),
    Alias("MAX_MODEL_LEN", "LABELS_MAX_TOKENS"),
    Alias("PORT", "BIND", _port),
    Alias("DECISION_ADAPTER_NAME", "LABELS_ADAPTER"),
    Alias("DECISION_INVOCATION_MARKER", "LABELS_MARKER"),
    Alias("DECISION_RENDERER", "LABELS_RENDERER"),
    Alias("DECISION_MAX_CONCURRENT_REQUESTS", "MAX_CONCURRENT_DECISIONS"),
    Alias("DECISION_EXPERIMENTAL_SYSTEM_PROMPT", "LABELS_SYSTEM_PROMPT_FILE", _system_prompt),
)


def given(setting: Setting, environ: Mapping[str, str]) -> tuple[str, str | None]:
    """The variable that sets ``setting`` and its text, None when none does.

    Raises ValueError with the whole message when two variables of it say different things.
    """
    found: list[tuple[str, str]] = []
    if setting.variable in environ:
        found.append((setting.variable, environ[setting.variable]))
    for alias in ALIASES:
        if alias.name == setting.name and alias.variable in environ:
            try:
                text = alias.convert(environ[alias.variable])
            except ValueError as error:
                raise ValueError(f"{alias.variable} {error}") from None
            if text is not None:
                found.append((alias.variable, text))
    if len({text for _, text in found}) > 1:
        raise ValueError(f"{' and '.join(name for name, _ in found)} are both set, and differ; set one of them")
    return found[0] if found else (setting.variable, None)
