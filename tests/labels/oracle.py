"""What a labels engine must answer, computed the plainest way: the whole prompt in one forward of one row, nothing
cached, and the softmax over the labels. It shares no code with the engine, and takes the prompt as the test spells it.
"""

from __future__ import annotations

import importlib
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scorer.engines.torch_start import go_offline

__all__ = ["LABELS", "Oracle", "Read"]

#: A to Z, AA to ZZ.
LABELS = [*string.ascii_uppercase, *(a + b for a in string.ascii_uppercase for b in string.ascii_uppercase)]


class Read(NamedTuple):
    """``ids`` of the prompt, the ``probabilities`` of its labels, how much of the whole vocabulary's they hold, and
    whether the likeliest token is one of them; ``adapters`` are the numbers of a Granite Switch model's, per token."""

    ids: list[int]
    probabilities: list[float]
    label_mass: float
    argmax_is_label: bool
    adapters: list[int]


class Oracle:
    """Reads prompts with the model in ``folder``, in float32."""

    def __init__(self, folder: Path) -> None:
        go_offline()
        transformers: Any = importlib.import_module("transformers")
        if "granite" in folder.name:
            importlib.import_module("granite_switch.hf")
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()

    def ids(self, prompt: str) -> list[int]:
        """The tokens of a prompt."""
        ids: list[int] = self.tokenizer(prompt, add_special_tokens=False)["input_ids"]
        return ids

    def read(self, prompt: str, options: int | Sequence[str]) -> Read:
        """Read ``prompt`` at its end for the first ``options`` labels, or for the labels given."""
        torch: Any = importlib.import_module("torch")
        labels = LABELS[:options] if isinstance(options, int) else options
        ids = self.ids(prompt)
        tokens = []
        for label in labels:
            with_label = self.ids(prompt + label)
            assert with_label[:-1] == ids, f"{label} is not one token"
            tokens.append(with_label[-1])
        with torch.inference_mode():
            logits = self.model(torch.tensor([ids]), use_cache=False).logits[0, -1].double()
        adapters = getattr(self.model.model, "_last_adapter_indices", None)
        return Read(
            ids,
            logits[tokens].softmax(-1).tolist(),
            float(logits.softmax(-1)[tokens].sum()),
            int(logits.argmax()) in tokens,
            [] if adapters is None else adapters[0].tolist(),
        )
