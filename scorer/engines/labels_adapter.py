"""Which adapter of a Granite Switch checkpoint answers, and the proof that a prompt turns it on exactly once (C30)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scorer.engines.base import StartRefused
from shared.setting import PREFIX

__all__ = ["check_activation", "choose_adapter"]

#: The adapter that is taken where a checkpoint has several and the setting names none.
_DECISION = "decision"


def choose_adapter(config: Any, asked: str | None, marker: str) -> str | None:
    """The adapter's name, None for an ordinary model. ``asked`` is the setting LABELS_ADAPTER.

    Raises StartRefused for a name that the checkpoint has no adapter of, for a checkpoint without a decision adapter,
    and for an adapter without a marker.
    """
    names = list(getattr(config, "adapter_names", None) or [])
    if not names and (asked or hasattr(config, "adapter_names")):
        raise StartRefused(f"{PREFIX}CHECKPOINT: the checkpoint has no decision adapter; it has no adapters at all")
    if not names:
        return None
    known = ", ".join(names)
    if asked and asked not in names:
        raise StartRefused(f"{PREFIX}LABELS_ADAPTER={asked}: the checkpoint has no such adapter; it has {known}")
    name = asked or (names[0] if len(names) == 1 else _DECISION)
    if name not in names:
        raise StartRefused(
            f"{PREFIX}CHECKPOINT: the checkpoint has no decision adapter; it has {known}. "
            f"{PREFIX}LABELS_ADAPTER chooses one of them"
        )
    if not marker:
        raise StartRefused(f"{PREFIX}LABELS_MARKER must be set: the adapter {name} is turned on by it")
    return str(name)


def check_activation(config: Any, name: str, marker: str, ids: Sequence[int], before: int) -> None:
    """Raise StartRefused unless the prompt ``ids`` holds the adapter's control token once and no other adapter's, and
    holds it before the question: among the first ``before`` ids.

    Where no turn holds an adapter's invocation text, the chat template turns it on once too, but only for the answer:
    so a wrong marker would pass for a right one. Adapters of a two-stream checkpoint (Shadow Residual) belong there.
    """
    tokens = list(config.adapter_token_ids)
    # A checkpoint may have one more: a leading token that turns every adapter off.
    own = tokens[config.adapter_names.index(name) + len(tokens) - len(config.adapter_names)]
    found = [number for number in ids if number in tokens]
    own_count = found.count(own)
    if found != [own]:
        raise StartRefused(
            f"{PREFIX}LABELS_MARKER={marker}: in a prompt with it the chat template turns the adapter {name} on "
            f"{own_count} times and others {len(found) - own_count} times; it must be once and never"
        )
    if own not in ids[:before] and not getattr(config, "dual_stream", False):
        raise StartRefused(
            f"{PREFIX}LABELS_MARKER={marker}: it is not what turns the adapter {name} on: the chat template does so "
            "behind the question, where it would not read it"
        )
