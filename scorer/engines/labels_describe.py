"""How the ``labels`` engine describes itself, and its limits."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from scorer.engines.labels_model import fingerprint, model_name
from shared.settings import ScorerSettings
from shared.wire import EngineInfo, Limits

__all__ = ["CALIBRATION", "LONG_REQUEST_TOKENS", "QUESTION_TOKENS", "REQUEST_TOKENS", "describe"]

#: contract/granite-switch-decision.md, Size: tokens of a question, of a request, and of a request that asked for a long
#: context. A request's tokens are its state's, once, and its questions'.
QUESTION_TOKENS, REQUEST_TOKENS, LONG_REQUEST_TOKENS = 32_768, 65_536, 262_144
#: Nothing is fitted: the softmax is the model's own.
CALIBRATION = {"method": "none", "temperature": 1.0}
#: Levels of a score, as in Jev's interface.
_LEVELS = 10


def describe(
    settings: ScorerSettings,
    config: Any,
    *,
    letters: int,
    architecture: str,
    adapter: str | None,
    dtype: str,
    device: str,
    sharing: bool,
    torch_version: str,
) -> EngineInfo:
    """The description of a loaded model with so many labels.

    The model's own length bounds a question, which is one read. LABELS_MAX_TOKENS bounds a request too, as
    ``--max-model-len`` does in granite-switch-decision (C11).
    """
    own = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None) or QUESTION_TOKENS
    cap = settings.labels_max_tokens or LONG_REQUEST_TOKENS
    revision = fingerprint(settings.checkpoint)
    name = settings.labels_model_name or model_name(settings.checkpoint)
    return EngineInfo(
        engine="labels",
        name=name,
        revision=revision[:12],
        readout="one read of the model at the end of each question's prompt; softmax over the logits of the supplied "
        "options' single-token labels; no generated text",
        prompt_version=f"labels-1/{settings.labels_renderer}",
        probability_status="conditional on the supplied options; not calibrated",
        default_profile="jev",
        description="a causal language model read at its option labels",
        release_date="",
        limits=Limits(
            options=letters,
            levels=min(_LEVELS, letters),
            tokens=min(QUESTION_TOKENS, own, cap),
            request_tokens=min(REQUEST_TOKENS, cap),
            long_request_tokens=min(LONG_REQUEST_TOKENS, cap),
        ),
        model={
            "source": name,
            "revision": revision,
            "architecture": architecture,
            "dtype": dtype,
            "device": settings.device,
            "adapter": adapter,
            "marker": settings.labels_marker,
            "system_prompt": settings.labels_system_prompt_file is not None,
            "renderer": settings.labels_renderer,
            "prefix_sharing": sharing,
            "torch_version": torch_version,
            "transformers_version": metadata.version("transformers"),
            "python_version": platform.python_version(),
        },
        calibration=dict(CALIBRATION),
        device=device,
        vram_cap_gib=settings.vram_cap_gib,
    )
