"""Build a tiny random chat model for the ``labels`` engine, from a fixed seed, without a network.

    python -m scorer.engines.labels_tiny.build DIRECTORY

writes a Hugging Face snapshot (a stock Llama of about 0.1 million parameters, its fast tokenizer and a chat template)
and prints the settings that serve it, one ``NAME=value`` a line. One that is there already is left alone.

The tokenizer has every byte, so any text round-trips, and the 702 labels A to Z and AA to ZZ are single tokens, also
behind the line break that ends a prompt. The context is 65,536 positions: limits bind before it does.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import string
import sys
import tempfile
from pathlib import Path
from typing import Any

from scorer.engines.torch_start import go_offline
from shared.settings import PREFIX

__all__ = ["CONTEXT", "TURN_END", "TURN_START", "build_tiny_lm", "main", "tokenizer_of"]

#: Positions of the model.
CONTEXT = 65536
#: The special tokens of the chat format.
TURN_START, TURN_END = "<|turn|>", "<|end|>"

_SEED = 20261201
_PAD = "<|pad|>"
_TWO_LETTERS = [(first, second) for first in string.ascii_uppercase for second in string.ascii_uppercase]

_TEMPLATE = (
    "{%- for turn in messages -%}"
    "{%- if turn.role not in ('system', 'user', 'assistant') -%}"
    "{{ raise_exception('unknown role ' ~ turn.role) }}"
    "{%- endif -%}"
    f"{{{{ '{TURN_START}' ~ turn.role ~ '\\n' ~ turn.content ~ '{TURN_END}\\n' }}}}"
    "{%- endfor -%}"
    f"{{%- if add_generation_prompt -%}}{{{{ '{TURN_START}assistant\\n' }}}}{{%- endif -%}}"
)

# Enough text for merges that keep prompts short.
_TEXT = [
    "State:\n{}\nQuestion: Which team should handle this? Options: Answer with the letter of one option.\n",
    "\nA: No / false\nB: Yes / true\nC: other\nD: none of these\n",
    "system user assistant decision instructions description low medium high urgent",
    "A customer writes that the parcel came late and the invoice was paid two times; which team should answer it?",
    "The payment was refused, the account is locked, and the password has been changed by somebody else.",
    "How urgent is the request: low, medium, high? Is the person asking for the money back?",
    "billing shipping delivery returns technical sales support other",
]


def build_tiny_lm(folder: Path) -> Path:
    """Build the model in ``folder``, unless it is there, and return it. Raises OSError when it cannot be written."""
    folder = folder.absolute()
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # In place only when it is whole: a half-written one would be taken for a checkpoint at the next start.
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".build-") as scratch:
            whole = Path(scratch) / "snapshot"
            go_offline()
            tokenizer = tokenizer_of(_TEMPLATE, [])
            tokenizer.save_pretrained(whole)
            _model(tokenizer).save_pretrained(whole)
            try:
                os.replace(whole, folder)
            except OSError:
                # Another process was faster, which is as good: both build the same.
                if not folder.is_dir():
                    raise
    return folder


def tokenizer_of(template: str, special: list[str]) -> Any:
    """A fast tokenizer with ``template`` and the ``special`` tokens besides those of its turns."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    transformers: Any = importlib.import_module("transformers")

    def byte_level(bpe: Any) -> Any:
        bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        bpe.decoder = decoders.ByteLevel()
        return bpe

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    learned = byte_level(Tokenizer(models.BPE()))
    learned.train_from_iterator(
        _TEXT, trainers.BpeTrainer(vocab_size=len(alphabet) + 400, show_progress=False, initial_alphabet=alphabet)
    )
    # The pairs of capitals first, so that no merge of the text takes a letter of a label away.
    merges = [*_TWO_LETTERS, *(pair for pair in _merges(learned) if pair not in set(_TWO_LETTERS))]
    pieces = dict.fromkeys([*alphabet, *(first + second for first, second in merges)])
    specials = [_PAD, TURN_END, TURN_START, *special]
    vocabulary = {piece: number for number, piece in enumerate([*specials, *pieces])}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level(Tokenizer(models.BPE(vocabulary, merges))),
        eos_token=TURN_END,
        pad_token=_PAD,
        additional_special_tokens=[TURN_START, *special],
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = template
    return tokenizer


def _merges(bpe: Any) -> list[tuple[str, str]]:
    from shared import jsonio

    return [(first, second) for first, second in jsonio.loads(bpe.to_str().encode())["model"]["merges"]]


def _model(tokenizer: Any) -> Any:
    import torch

    transformers: Any = importlib.import_module("transformers")
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        # Ten times the usual spread: with it a random model has opinions, without it every answer is near uniform.
        initializer_range=0.2,
        dtype="float32",
    )
    torch.manual_seed(_SEED)
    return transformers.LlamaForCausalLM(config)


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m scorer.engines.labels_tiny.build", description=__doc__.splitlines()[0]
    )
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args(argv)
    # A folder of its own for each version of this script, so that an older build is never taken for the current one.
    revision = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:40]
    try:
        folder = build_tiny_lm(arguments.directory / "snapshots" / revision)
    except ModuleNotFoundError as error:
        print(f"the tiny model needs {error.name}: pip install 'intern-decision-serve[labels]'", file=sys.stderr)
        return 1
    for name, value in {"ENGINE": "labels", "DEVICE": "cpu", "CHECKPOINT": str(folder)}.items():
        print(f"{PREFIX}{name}={value}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
