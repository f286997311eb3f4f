"""The ``inference.py`` of the tiny checkpoint. The build script copies it into the snapshot; nothing imports it from
here.

It has the interface, the output object and the errors of a real one (engine/intern-decision.md §1, §6.2), and a prompt
of its own. It takes no images. The model behind it is random: its answers mean nothing, they only are always the same.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoProcessor, AutoTokenizer, Qwen3_5ForConditionalGeneration

MODEL_NAME = "Intern-Decision-tiny"
DEFAULT_TEMPERATURE = 1.5
DECISION_TOKEN = "<decision>"
ANSWER_SYMBOLS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + "abcdefghijklmnopqrstuvwxyz" + "0123456789"
SYSTEM_PROMPT = "Read the situation, then fill in one option letter for each field of the form."

_MAX_QUESTIONS = 16
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_SIDES = {"yes": "yes", "true": "yes", "1": "yes", "no": "no", "false": "no", "0": "no"}


@dataclass(frozen=True)
class CompiledExample:
    """The chat turns of one call, its fields in order, and the symbols of each field's options."""

    messages: list[dict[str, str]]
    fields: tuple[str, ...]
    symbols: dict[str, tuple[str, ...]]


def validate_request(request: Any) -> dict[str, Any]:
    """A deep copy of ``request``. Raises ValueError with the rule that it breaks, TypeError for a question type that is
    a list or an object."""
    if not isinstance(request, dict) or "state" not in request:
        raise ValueError("Supply a JSON object containing state and questions.")
    images = request.get("images")
    if images:
        if not isinstance(images, list) or len(images) > 8:
            raise ValueError("Upload 1–8 images.")
        if not all(isinstance(image, str) and image for image in images):
            raise ValueError("Images must be nonempty local file paths.")
        raise ValueError("This checkpoint takes no images.")
    questions = request.get("questions")
    if not isinstance(questions, dict) or not 1 <= len(questions) <= _MAX_QUESTIONS:
        raise ValueError(f"Supply 1–{_MAX_QUESTIONS} questions.")
    for name, question in questions.items():
        if not isinstance(name, str) or not name:
            raise ValueError("Question names must be nonempty strings.")
        if not isinstance(question, dict) or question.get("type") not in {"choice", "score", "noul"}:
            raise ValueError("Question type must be choice, score, or noul.")
        _options(question)
    return copy.deepcopy(request)


def _options(question: Mapping[str, Any]) -> dict[str, Any]:
    """Label to description, in the order in which the options are shown."""
    criteria = question.get("criteria")
    if question["type"] == "noul":
        sides: dict[str, Any] = {}
        for key, text in criteria.items() if isinstance(criteria, dict) else ():
            side = _SIDES.get(str(key).lower())
            if side:
                sides.setdefault(side, text)
        return {"no": sides.get("no", "It is not so."), "yes": sides.get("yes", "It is so.")}
    if question["type"] == "choice":
        if not isinstance(criteria, dict):
            raise ValueError("Choice criteria must be an object.")
        options = {str(key): text for key, text in criteria.items()}
    elif isinstance(criteria, dict):
        if not all(_is_number(key) for key in criteria):
            raise ValueError("Score option keys must be finite numbers.")
        options = {str(key): text for key, text in criteria.items()}
    elif isinstance(criteria, list):
        options = {str(level): text for level, text in enumerate(criteria)}
    else:
        raise ValueError("Score criteria must be a list or object.")
    if not 1 <= len(options) <= len(ANSWER_SYMBOLS):
        raise ValueError(f"Supply 1–{len(ANSWER_SYMBOLS)} options.")
    return options


def _is_number(key: Any) -> bool:
    try:
        return math.isfinite(float(key))
    except (TypeError, ValueError):
        return False


def compile_row(row: Mapping[str, Any]) -> CompiledExample:
    """The chat turns for a valid request. Raises ValueError when the caller's text holds the reserved marker."""
    lines = ["Situation:", json.dumps(row["state"], ensure_ascii=False, indent=1), "", "Form:"]
    symbols = {}
    for field, question in row["questions"].items():
        options = _options(question)
        symbols[field] = tuple(ANSWER_SYMBOLS[: len(options)])
        lines.append(f"{field}: {question.get('instructions') or ''}")
        for symbol, (label, text) in zip(symbols[field], options.items(), strict=True):
            lines.append(f"  {symbol}) {label}: {text}")
    user = "\n".join(lines)
    if DECISION_TOKEN in user:
        raise ValueError("Reserved decision marker appears in input evidence")
    filled = json.dumps(dict.fromkeys(symbols, DECISION_TOKEN), ensure_ascii=False, indent=1)
    messages = [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": user},
        {"role": "assistant", "content": filled},
    ]
    return CompiledExample(messages, tuple(symbols), symbols)


def scale_probabilities(probabilities: Mapping[str, float], temperature: float) -> dict[str, float]:
    """Temperature-scale in float64. Raises ValueError for what is no distribution: the forward was not finite."""
    values = list(probabilities.values())
    if not values or not all(math.isfinite(p) and 0.0 <= p <= 1.0 for p in values):
        raise ValueError("Invalid probability distribution")
    if abs(math.fsum(values) - 1.0) > 1e-3:
        raise ValueError("Probabilities must sum to one")
    top = max(values)
    weights = {label: (p / top) ** (1.0 / temperature) for label, p in probabilities.items()}
    total = math.fsum(weights.values())
    return {label: weight / total for label, weight in weights.items()}


def argmax(probabilities: Mapping[str, float]) -> str:
    """The likeliest label; of several, the smallest as a string."""
    return min(probabilities, key=lambda label: (-probabilities[label], label))


class HFBackend:
    """Tokenizer and model of one snapshot directory."""

    def __init__(
        self, checkpoint: str, media_root: str, max_length: int, device: str, dtype: str, attn_implementation: str
    ) -> None:
        self.checkpoint = Path(checkpoint)
        self.media_root = media_root
        self.max_length = max_length
        self.device = torch.device(device)
        self.tokenizer = AutoTokenizer.from_pretrained(checkpoint, local_files_only=True)
        if DECISION_TOKEN not in self.tokenizer.get_added_vocab():
            raise ValueError("Checkpoint must include its trained decision tokenizer")
        self.marker_id = self.tokenizer.convert_tokens_to_ids(DECISION_TOKEN)
        model: Any = Qwen3_5ForConditionalGeneration.from_pretrained(
            checkpoint, dtype=_DTYPES[dtype], local_files_only=True, attn_implementation=attn_implementation
        )
        self.model = model.to(self.device).eval()
        if self.marker_id >= self.model.get_input_embeddings().num_embeddings:
            raise ValueError("Decision marker exceeds checkpoint vocabulary")

    @property
    def processor(self) -> Any:
        """The image processor; nothing here uses it, so it is loaded only when asked for."""
        loader: Any = AutoProcessor
        return loader.from_pretrained(self.checkpoint, local_files_only=True)

    def encode(self, row: Mapping[str, Any]) -> tuple[CompiledExample, Any, list[int]]:
        """The compiled call, the model's inputs (1, tokens) and the position before each marker. Raises ValueError when
        it is too long."""
        compiled = compile_row(row)
        text = self.tokenizer.apply_chat_template(
            compiled.messages, tokenize=False, add_generation_prompt=False, enable_thinking=False, add_vision_id=True
        )
        batch = self.tokenizer(text, add_special_tokens=False, return_tensors="pt")
        ids = batch["input_ids"][0]
        if len(ids) > self.max_length:
            raise ValueError(f"Example has {len(ids)} tokens, above {self.max_length}; truncation is forbidden")
        positions = ((ids == self.marker_id).nonzero().flatten() - 1).tolist()
        if len(positions) != len(compiled.fields) or min(positions) < 0:
            raise ValueError("Decision marker count or position mismatch")
        return compiled, batch, positions

    def score(self, row: Mapping[str, Any]) -> tuple[dict[str, list[float]], int, float]:
        """Raw probabilities of each field's options in order, the input's token count, and the milliseconds of the
        forward."""
        compiled, batch, positions = self.encode(row)
        started = time.perf_counter()
        where = torch.tensor(positions, device=self.device)
        with torch.inference_mode():
            logits = self.model(**batch.to(self.device), use_cache=False, logits_to_keep=where).logits[0]
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        took = 1000.0 * (time.perf_counter() - started)
        probabilities = {
            field: torch.softmax(line[self._symbol_ids(compiled.symbols[field])].float(), dim=-1).tolist()
            for field, line in zip(compiled.fields, logits, strict=True)
        }
        return probabilities, int(batch["input_ids"].shape[1]), took

    def _symbol_ids(self, symbols: Sequence[str]) -> list[int]:
        ids = [self.tokenizer.encode(symbol, add_special_tokens=False) for symbol in symbols]
        if any(len(one) != 1 for one in ids):
            raise ValueError("Candidate symbols must each encode to a single token")
        return [one[0] for one in ids]


class DecisionEngine:
    """Answers requests; see :meth:`predict`."""

    def __init__(
        self,
        checkpoint: str | None = None,
        *,
        temperature: float = DEFAULT_TEMPERATURE,
        backend: str = "hf",
        media_root: str = ".",
        max_length: int = 8192,
        device: str = "cuda",
        dtype: str = "bfloat16",
        attn_implementation: str = "sdpa",
    ) -> None:
        if backend != "hf":
            raise ValueError("Only backend='hf' is implemented in this release")
        if not (math.isfinite(float(temperature)) and float(temperature) > 0):
            raise ValueError("Temperature must be finite and positive")
        if dtype not in _DTYPES:
            raise ValueError("Unsupported dtype")
        if max_length < 1:
            raise ValueError("max_length must be positive")
        self.temperature = float(temperature)
        self.backend_name = backend
        self.backend = HFBackend(
            checkpoint or str(Path(__file__).parent), media_root, max_length, device, dtype, attn_implementation
        )
        self.tokenizer = self.backend.tokenizer

    def predict(self, request: Any) -> dict[str, Any]:
        """The answer object of engine/intern-decision.md §1.8. Raises as :func:`validate_request`, :func:`compile_row`
        and :func:`scale_probabilities` do."""
        row = validate_request(request)
        raw, tokens, took = self.backend.score(row)
        answers = {field: self._answer(row["questions"][field], values) for field, values in raw.items()}
        return {
            "answers": answers,
            "usage": {"input_tokens": tokens, "output_tokens": len(answers), "decision_count": len(answers)},
            "timing": {"inference_ms": round(took, 2)},
            "calibration": {"method": "temperature-scaling", "temperature": self.temperature},
            "model": MODEL_NAME,
            "backend": self.backend_name,
        }

    def _answer(self, question: Mapping[str, Any], values: Sequence[float]) -> dict[str, Any]:
        options = _options(question)
        scaled = scale_probabilities(dict(zip(options, values, strict=True)), self.temperature)
        decision = argmax(scaled)
        answer: dict[str, Any] = {"type": question["type"], "probabilities": scaled, "confidence": scaled[decision]}
        if question["type"] == "choice":
            answer["choice"] = decision
        elif question["type"] == "score":
            answer["score"] = math.fsum(float(label) * p for label, p in scaled.items())
            answer["legend"] = options
        else:
            answer["noul"] = scaled["yes"]
        return {**answer, "source": "local", "decision": decision}
