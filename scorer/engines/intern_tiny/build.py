"""Build the tiny random checkpoint of the ``intern`` engine, from a fixed seed, without a network.

    python -m scorer.engines.intern_tiny.build DIRECTORY

writes ``DIRECTORY/snapshots/<revision>/`` and ``DIRECTORY/pins.json`` and prints the settings that serve them, one
``NAME=value`` a line. The revision is a hash of this script and of the snapshot's ``inference.py``, so a checkpoint of
an older script is never taken for the current one; one that is there already is left alone, and then nothing heavy is
imported.

About 0.3 million parameters: three linear-attention layers and one of full attention, as in the real model's pattern.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scorer.engines.torch_start import go_offline
from shared import jsonio
from shared.pins import Pin, dump_pin
from shared.settings import PREFIX

__all__ = ["Built", "build", "main"]

_NAME = "Intern-Decision-tiny"
_SEED = 20261130
_VOCABULARY = 768

_END, _PAD = "<|im_end|>", "<|endoftext|>"
_MARKS = [
    "<|im_start|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<think>",
    "</think>",
    "<decision>",
]

# The empty think block hangs on enable_thinking alone, so a prompt rendered with other arguments than predict() uses
# has another length, and the engine's start check (INV-8) has something to find.
_TEMPLATE = (
    "{%- for turn in messages -%}"
    "{{ '<|im_start|>' ~ turn.role ~ '\\n' }}"
    "{%- if loop.last and turn.role == 'assistant' and enable_thinking is false -%}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}"
    "{%- endif -%}"
    "{{ turn.content | trim ~ '<|im_end|>\\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)

# Enough text for merges that keep prompts short.
_TEXT = [
    "Read the situation, then fill in one option letter for each field of the form.",
    'Situation:\n{\n "text": ""\n}\n\nForm:\n',
    "  A) yes: It is so.\n  B) no: It is not so.\n",
    '{\n "q": "",\n "q1": "",\n "q2": "",\n "q10": ""\n}',
    "A customer writes that the parcel came late and the invoice was paid two times; which team should answer it?",
    "The payment was refused, the account is locked, and the password has been changed by somebody else.",
    "How urgent is the request: low, medium, high? Is the person asking for the money back?",
    "billing shipping delivery returns technical sales support other",
    "The quick report says that every pump, valve and sensor in the north station works as it should.",
]


@dataclass(frozen=True)
class Built:
    """Where a checkpoint lies: its snapshot directory and the pins file that allows it."""

    checkpoint: Path
    pins: Path

    def settings(self) -> dict[str, str]:
        """The environment that serves it on a CPU."""
        return {
            f"{PREFIX}ENGINE": "intern",
            f"{PREFIX}DEVICE": "cpu",
            f"{PREFIX}CHECKPOINT": str(self.checkpoint),
            f"{PREFIX}PINS_FILE": str(self.pins),
        }


def build(directory: Path) -> Built:
    """Build the checkpoint under ``directory`` unless it is there. Raises OSError when it cannot be written."""
    inference = Path(__file__).with_name("inference.py").read_bytes()
    revision = hashlib.sha256(Path(__file__).read_bytes() + inference).hexdigest()[:40]
    directory = directory.absolute()
    built = Built(directory / "snapshots" / revision, directory / "pins.json")
    built.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    if not built.checkpoint.is_dir():
        # In place only when it is whole: a half-written one would be taken for a checkpoint at the next start.
        with tempfile.TemporaryDirectory(dir=directory, prefix=".build-") as scratch:
            _write(Path(scratch) / "snapshot", inference)
            try:
                os.replace(Path(scratch) / "snapshot", built.checkpoint)
            except OSError:
                # Another process was faster, which is as good: both build the same.
                if not built.checkpoint.is_dir():
                    raise
    pin = Pin(_NAME, revision, hashlib.sha256(inference).hexdigest())
    built.pins.write_bytes(dump_pin(pin))
    return built


def _write(out: Path, inference: bytes) -> None:
    go_offline()
    out.mkdir()
    tokenizer = _tokenizer()
    model = _model(tokenizer)
    tokenizer.save_pretrained(out)
    model.save_pretrained(out)
    (out / "inference.py").write_bytes(inference)
    # Read by an inference.py that loads an image processor. CLIP's has no video half, which would need torchvision.
    image = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "size": {"shortest_edge": 1024, "longest_edge": 65536},
    }
    (out / "preprocessor_config.json").write_bytes(jsonio.dumps(image))
    (out / "processor_config.json").write_bytes(jsonio.dumps({"processor_class": "CLIPProcessor"}))


def _tokenizer() -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    transformers: Any = importlib.import_module("transformers")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    # The whole byte alphabet makes every answer symbol one token and leaves no text without one.
    bpe.train_from_iterator(
        _TEXT,
        trainers.BpeTrainer(
            vocab_size=_VOCABULARY,
            special_tokens=[_PAD, _END, *_MARKS],
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=_END,
        pad_token=_PAD,
        additional_special_tokens=_MARKS,
        model_max_length=32768,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


def _model(tokenizer: Any) -> Any:
    import torch

    transformers: Any = importlib.import_module("transformers")
    token = tokenizer.convert_tokens_to_ids
    text = {
        "vocab_size": _VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
        "eos_token_id": token(_END),
        "pad_token_id": token(_PAD),
        # Ten times the usual spread: with it a random model has opinions, without it every answer is near uniform.
        "initializer_range": 0.2,
        # The sections count pairs of rotated dimensions: half of head_dim * partial_rotary_factor.
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 1e6,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 64,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    config = transformers.Qwen3_5Config(
        text_config=text,
        vision_config=vision,
        tie_word_embeddings=True,
        image_token_id=token("<|image_pad|>"),
        video_token_id=token("<|video_pad|>"),
        vision_start_token_id=token("<|vision_start|>"),
        vision_end_token_id=token("<|vision_end|>"),
    )
    torch.manual_seed(_SEED)
    return transformers.Qwen3_5ForConditionalGeneration(config).to(torch.bfloat16)


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    name = "scorer.engines.intern_tiny.build"
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--fresh", action="store_true", help="drop what is in the directory's snapshots first")
    arguments = parser.parse_args(argv)
    if arguments.fresh:
        shutil.rmtree(arguments.directory / "snapshots", ignore_errors=True)
    try:
        built = build(arguments.directory)
    except ModuleNotFoundError as error:
        print(f"the tiny checkpoint needs {error.name}: pip install 'intern-decision-serve[intern]'", file=sys.stderr)
        return 1
    for name, value in built.settings().items():
        print(f"{name}={value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
