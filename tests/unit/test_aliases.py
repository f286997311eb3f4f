"""Names of granite-switch-decision (contract/granite-switch-decision.md, Configuration) stand for our settings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shared.aliases import ALIASES
from shared.settings import PREFIX, SETTINGS, ScorerSettings, SettingsError, WebSettings

TOKEN = {f"{PREFIX}API_TOKEN": "t" * 32}
README = Path(__file__).resolve().parents[2] / "README.md"

#: A text for each, as its users have it, and what it becomes.
EXAMPLES = {
    "MODEL_DIR": ("/repository", "checkpoint", Path("/repository")),
    "SERVED_MODEL_NAME": ("granite-switch", "labels_model_name", "granite-switch"),
    "MAX_MODEL_LEN": ("32768", "labels_max_tokens", 32768),
    "PORT": ("9000", "bind", "127.0.0.1:9000"),
    "DECISION_ADAPTER_NAME": ("decision", "labels_adapter", "decision"),
    "DECISION_INVOCATION_MARKER": ("### DECISION", "labels_marker", "### DECISION"),
    "DECISION_RENDERER": ("mine:render", "labels_renderer", "mine:render"),
    "DECISION_MAX_CONCURRENT_REQUESTS": ("8", "max_concurrent_decisions", 8),
    "DECISION_EXPERIMENTAL_SYSTEM_PROMPT": ("0", "labels_system_prompt_file", None),
}


def settings(values: dict[str, str]) -> dict[str, object]:
    """Both tiers' settings."""
    environ = TOKEN | values
    return vars(ScorerSettings.from_env(environ)) | vars(WebSettings.from_env(environ))


def test_every_alias_has_an_example_and_names_a_setting() -> None:
    assert list(EXAMPLES) == [alias.variable for alias in ALIASES]
    assert {alias.name for alias in ALIASES} <= {setting.name for setting in SETTINGS}


@pytest.mark.parametrize("alias", ALIASES, ids=lambda alias: alias.variable)
def test_an_alias_sets_our_setting(alias) -> None:
    text, field, value = EXAMPLES[alias.variable]
    assert settings({alias.variable: text})[field] == value
    assert field == alias.name.lower()


def test_our_own_name_and_an_alias_may_say_the_same() -> None:
    both = {"MAX_MODEL_LEN": "4096", f"{PREFIX}LABELS_MAX_TOKENS": "4096"}
    assert settings(both)["labels_max_tokens"] == 4096
    assert settings({"PORT": "9000", f"{PREFIX}BIND": "127.0.0.1:9000"})["bind"] == "127.0.0.1:9000"


@pytest.mark.parametrize("alias", [one for one in ALIASES if EXAMPLES[one.variable][2]], ids=lambda one: one.variable)
def test_two_names_of_one_setting_that_differ_refuse_the_start_and_both_are_named(alias) -> None:
    text, _, _ = EXAMPLES[alias.variable]
    with pytest.raises(SettingsError) as caught:
        settings({alias.variable: text, PREFIX + alias.name: "/other"})
    assert alias.variable in str(caught.value)
    assert PREFIX + alias.name in str(caught.value)
    assert "/other" not in str(caught.value)


def test_a_bad_value_is_told_under_the_name_that_was_set() -> None:
    with pytest.raises(SettingsError, match=r"^MAX_MODEL_LEN must be a whole number"):
        settings({"MAX_MODEL_LEN": "32k"})


def test_the_trained_system_prompt_cannot_be_switched_on_because_its_text_is_not_ours() -> None:
    with pytest.raises(
        SettingsError, match=r"^DECISION_EXPERIMENTAL_SYSTEM_PROMPT must be 0.*LABELS_SYSTEM_PROMPT_FILE"
    ):
        settings({"DECISION_EXPERIMENTAL_SYSTEM_PROMPT": "1"})
    own = {"DECISION_EXPERIMENTAL_SYSTEM_PROMPT": "0", f"{PREFIX}LABELS_SYSTEM_PROMPT_FILE": "/prompt.txt"}
    assert settings(own)["labels_system_prompt_file"] == Path("/prompt.txt")


def test_the_readmes_table_of_aliases_is_the_aliases() -> None:
    text = README.read_text(encoding="utf-8").split("### Settings of granite-switch-decision\n", 1)[1]
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", text.split("\n## ", 1)[0], re.M)
    assert rows == [(alias.variable, alias.name) for alias in ALIASES]
