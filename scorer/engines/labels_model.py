"""From a directory to a model, its tokenizer and what identifies them, or a refusal that names the cause.

Any local directory with a config, safetensors weights, a tokenizer and a chat template will do. Code of the directory
is never run, and weights that are missing are never made up.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from scorer.engines.base import StartRefused
from shared import jsonio
from shared.setting import PREFIX

__all__ = ["Loaded", "fingerprint", "load", "load_renderer", "model_name", "read_system_prompt"]

#: Files of a model's directory that say what it answers.
_FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt")
#: Model types that are a package's, with the extra that brings it.
_PACKAGES = {"granite_switch": ("granite_switch.hf", "granite")}
_WHERE = f"{PREFIX}CHECKPOINT"


class Loaded(NamedTuple):
    """``model`` is on no device but the CPU yet."""

    model: Any
    tokenizer: Any
    config: Any


def load(directory: Path, dtype: str) -> Loaded:
    """Load from a local directory; ``dtype`` is torch's name of a number type. Raises StartRefused."""
    config_file = directory / "config.json"
    if not config_file.is_file():
        raise StartRefused(f"{_WHERE}: {directory} holds no model (there is no config.json)")
    try:
        kind = jsonio.loads(config_file.read_bytes()).get("model_type")
    except (jsonio.InvalidJSON, AttributeError, OSError) as error:
        raise StartRefused(f"{config_file}: {error}") from None
    transformers = _import("transformers", "labels")
    if kind in _PACKAGES:
        _import(*_PACKAGES[kind])
    transformers.utils.logging.disable_progress_bar()
    local = {"local_files_only": True, "trust_remote_code": False}
    tokenizer = _loading("tokenizer", lambda: transformers.AutoTokenizer.from_pretrained(directory, **local))
    if not tokenizer.chat_template:
        raise StartRefused(f"{_WHERE}: the tokenizer of {directory} has no chat template")
    model, report = _loading(
        "model",
        lambda: transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=dtype, use_safetensors=True, output_loading_info=True, **local
        ),
    )
    missing = sorted([*report["missing_keys"], *map(str, report["mismatched_keys"])])
    if missing:
        # transformers would only warn, and answer with random numbers in their place.
        raise StartRefused(f"{_WHERE}: {directory} lacks weights of the model: {', '.join(missing[:5])}")
    return Loaded(model.eval(), tokenizer, model.config)


def fingerprint(directory: Path) -> str:
    """sha256 (hex) over the names and contents of every file that a prompt or an answer depends on."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _FILES for path in directory.glob(pattern)}):
        with path.open("rb") as stream:
            digest.update(f"{path.name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def model_name(directory: Path) -> str:
    """A name for the model of a directory: the directory's own; for a snapshot, whose name is a hash, that of the entry
    of a Hugging Face cache which it belongs to, without the owner."""
    path = directory.absolute()
    return path.parent.parent.name.rpartition("--")[2] if path.parent.name == "snapshots" else path.name


def load_renderer(reference: str) -> Callable[..., Any]:
    """The function that the setting LABELS_RENDERER names. Raises StartRefused."""
    module, _, name = reference.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:  # a module of the operator's own may raise anything
        raise StartRefused(f"{PREFIX}LABELS_RENDERER={reference}: {type(error).__name__}: {error}") from None
    if not callable(function):
        raise StartRefused(f"{PREFIX}LABELS_RENDERER={reference} is not a function")
    return function  # type: ignore[no-any-return]


def read_system_prompt(file: Path | None) -> str:
    """The system prompt of the setting LABELS_SYSTEM_PROMPT_FILE, without the line break at its end; "" for none.
    Raises StartRefused."""
    if file is None:
        return ""
    try:
        text = file.read_text("utf-8").removesuffix("\n")
    except (OSError, UnicodeError) as error:
        raise StartRefused(f"{PREFIX}LABELS_SYSTEM_PROMPT_FILE: {file}: {error}") from None
    if not text:
        raise StartRefused(f"{PREFIX}LABELS_SYSTEM_PROMPT_FILE: {file} is empty")
    return text


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except (ImportError, OSError) as error:
        raise StartRefused(
            f"this model needs {module.partition('.')[0]}: pip install 'intern-decision-serve[{extra}]' "
            f"({type(error).__name__}: {error})"
        ) from None


def _loading(what: str, work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:  # whatever a damaged file makes the libraries raise; no caller has sent anything yet
        raise StartRefused(f"{_WHERE}: the {what} cannot be loaded ({type(error).__name__}: {error})") from None
