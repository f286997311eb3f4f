"""The checkpoints that the ``labels`` engine is tested with, each built in code from a fixed seed."""

from __future__ import annotations

import contextlib
import importlib
import io
import json
from pathlib import Path
from typing import Any, Literal

from scorer.engines.labels_tiny.build import CONTEXT, build_tiny_lm, tokenizer_of
from scorer.engines.torch_start import go_offline

__all__ = ["ADAPTERS", "MARKER", "build_tiny_granite", "build_tiny_lm"]

#: The text on which the adapter ``decision`` is switched on.
MARKER = "### DECISION"
#: The adapters of the tiny Granite Switch checkpoint and their invocation texts, in the order of their numbers, from 1.
ADAPTERS = {"answerability": "<answerability>", "decision": MARKER}

_SEED = 20261202
_ROLE, _ROLE_END, _TURN_END = "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"

# In the form that the composer of Granite Switch looks for when it adds its adapters to a chat template.
_TEMPLATE = (
    "{%- set ns = namespace(turns=0) %}"
    "{%- for message in messages %}"
    "{%- set content = namespace(val=message.content) %}"
    "{%- if (message.role == 'user') or message.role in ('system', 'assistant') %}"
    f"{{{{- '{_ROLE}' + message.role + '{_ROLE_END}' + content.val + '{_TURN_END}\\n' }}}}"
    "{%- endif %}"
    "{%- endfor %}"
    f"{{%- if add_generation_prompt %}}{{{{- '{_ROLE}assistant{_ROLE_END}' }}}}{{%- endif %}}"
)


def build_tiny_granite(
    folder: Path,
    *,
    adapters: dict[str, str] = ADAPTERS,
    marker_activates: Literal["once", "never", "twice"] = "once",
    base_reset: bool = False,
) -> Path:
    """A tiny random Granite Switch checkpoint in ``folder``, with ``adapters`` (name to invocation text); returns it.

    The chat template and the control tokens are those of the real composer. With ``never`` the template ignores
    adapters, as one that was not composed does; with ``twice`` it also switches on before the answer. ``base_reset``
    adds the control token that switches every adapter off, in front of the others.
    """
    go_offline()
    torch: Any = importlib.import_module("torch")
    granite: Any = importlib.import_module("granite_switch.hf")  # registers its classes, too
    composer: Any = importlib.import_module("granite_switch.composer.tokenizer_setup")
    config: Any = importlib.import_module("granite_switch.config")

    folder.mkdir(parents=True)
    tokenizer = tokenizer_of(_TEMPLATE, [_ROLE, _ROLE_END, _TURN_END])
    discovered = [_adapter(folder, tokenizer, name, text) for name, text in adapters.items()]
    with contextlib.redirect_stdout(io.StringIO()):  # the composer reports what it does
        control, _ = composer.add_control_tokens(tokenizer, discovered, base_reset=base_reset)
        role = tokenizer.convert_tokens_to_ids(_ROLE)
        substitutes = composer.build_substitute_token_ids(discovered, role, base_reset=base_reset)
        composer.configure_chat_template(tokenizer, discovered)
    if marker_activates == "never":
        tokenizer.chat_template = _TEMPLATE
    elif marker_activates == "twice":
        only_without_marker = " and ns.alora_target_idx == -1"
        assert tokenizer.chat_template.count(only_without_marker) == 1
        tokenizer.chat_template = tokenizer.chat_template.replace(only_without_marker, "")

    settings = config.GraniteSwitchConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2 + config.SWITCH_CACHE_LAYERS,
        num_attention_heads=2,
        num_key_value_heads=1,
        mamba_n_heads=2,  # not used, but checked against hidden_size
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        # Ten times the usual spread: with it a random model has opinions, without it every answer is near uniform.
        initializer_range=0.2,
        num_adapters=len(adapters),
        adapter_names=list(adapters),
        adapter_token_ids=control,
        adapter_substitute_token_ids=substitutes,
        adapter_ranks=[4] * len(adapters),
        max_lora_rank=4,
    )
    torch.manual_seed(_SEED)
    model = granite.GraniteSwitchForCausalLM(settings)
    for name, weights in model.named_parameters():
        if "lora_B" in name:  # zero in a new model, and with it the adapter's effect
            torch.nn.init.normal_(weights, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    _edit(folder / "config.json", dtype=None)  # as the composer leaves it
    return folder


def _adapter(folder: Path, tokenizer: Any, name: str, invocation: str) -> tuple[str, str, str, None]:
    """An adapter as the composer finds it: a directory with the tokens that switch it on."""
    directory = folder / "adapters" / name
    directory.mkdir(parents=True)
    tokens = tokenizer.encode(invocation, add_special_tokens=False)
    (directory / "adapter_config.json").write_text(json.dumps({"alora_invocation_tokens": tokens}), encoding="utf-8")
    return str(directory), name, "alora", None


def _edit(file: Path, **changes: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes), encoding="utf-8")
