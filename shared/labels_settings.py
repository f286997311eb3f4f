"""The settings of the ``labels`` engine alone: rows of :data:`shared.settings.SETTINGS`. Pure."""

from __future__ import annotations

from shared import parsers
from shared.setting import SCORER, Setting

__all__ = ["LABELS_SETTINGS"]

LABELS_SETTINGS = (
    Setting(
        "LABELS_MODEL_NAME",
        None,
        parsers.text,
        (SCORER,),
        "name of the model that the `labels` engine serves; unset is the name of its directory",
    ),
    Setting(
        "LABELS_DTYPE",
        "auto",
        parsers.choice("auto", "float32", "bfloat16", "float16"),
        (SCORER,),
        "number type of the `labels` engine; `auto` is bfloat16 on CUDA and float32 on a CPU",
    ),
    Setting(
        "LABELS_ADAPTER",
        None,
        parsers.text,
        (SCORER,),
        "adapter that the chat template is given; unset takes a Granite Switch checkpoint's only one, or `decision`",
    ),
    Setting(
        "LABELS_MARKER",
        None,
        parsers.text,
        (SCORER,),
        "invocation marker in front of the question; required for Granite Switch (`### DECISION`)",
    ),
    Setting(
        "LABELS_SYSTEM_PROMPT_FILE",
        None,
        parsers.path,
        (SCORER,),
        "UTF-8 file with a system prompt that the model was trained with; unset is no system prompt",
    ),
    Setting(
        "LABELS_RENDERER",
        "scorer.engines.labels_prompt:render",
        parsers.reference,
        (SCORER,),
        "`module:function` that lays a prompt out",
    ),
    Setting(
        "LABELS_MAX_TOKENS",
        None,
        parsers.integer(1),
        (SCORER,),
        "cap on the tokens of one question and of one request, below the `labels` engine's own limits",
    ),
    Setting(
        "LABELS_CACHE_MIB",
        "1024",
        parsers.integer(0),
        (SCORER,),
        "device memory for prefixes of recent requests, in MiB; 0 keeps none between requests",
    ),
    Setting(
        "LABELS_BATCH_TOKENS",
        "32768",
        parsers.integer(1),
        (SCORER,),
        "tokens of one forward of the `labels` engine, those of the shared prefix counted for every question",
    ),
)
