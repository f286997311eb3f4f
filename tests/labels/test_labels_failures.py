"""What a labels engine refuses at its start, and what a failed read leaves behind."""

from __future__ import annotations

import gc
import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scorer.engines.base import OutOfMemory, StartRefused
from scorer.engines.labels import LabelsEngine
from scorer.engines.torch_failures import ScoringFailed
from shared.settings import PREFIX
from tests.labels.checkpoints import MARKER

Start = Callable[..., LabelsEngine]

STATE = "The parcel came late and the invoice was paid two times. " * 8
CALLS = [{"q": {"type": "noul", "instructions": f"Is it {word}?"}} for word in ("late", "paid", "lost")]


@pytest.fixture
def copy(tiny_lm: Path, tmp_path: Path) -> Path:
    """The tiny chat model, to be damaged."""
    return Path(shutil.copytree(tiny_lm, tmp_path / "copy"))


def answers(engine: LabelsEngine) -> list[Any]:
    return [engine.predict(call).answer["answers"] for call in engine.prepare(STATE, CALLS)]


# -- the start ---


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_refuses_the_start(copy: Path, start: Start, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(StartRefused, match=f"^{PREFIX}CHECKPOINT: "):
        start(copy)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_damaged_file_refuses_the_start(copy: Path, start: Start, name: str) -> None:
    (copy / name).write_bytes(b"{nonsense")
    with pytest.raises(StartRefused, match=r"config\.json|CHECKPOINT"):
        start(copy)


def test_a_directory_that_is_not_there_refuses_the_start(tmp_path: Path, start: Start) -> None:
    with pytest.raises(StartRefused, match=f"^{PREFIX}CHECKPOINT: .*no config.json"):
        start(tmp_path / "absent")


def test_weights_that_are_missing_are_never_made_up(copy: Path, start: Start) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StartRefused, match=r"lacks weights of the model: model\.layers\.1\.mlp\.up_proj\.weight"):
        start(copy)


def test_a_tokenizer_without_a_chat_template_refuses_the_start(copy: Path, start: Start) -> None:
    for name in ("chat_template.jinja", "chat_template.json"):
        (copy / name).unlink(missing_ok=True)
    config = json.loads((copy / "tokenizer_config.json").read_text(encoding="utf-8"))
    config.pop("chat_template", None)
    (copy / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(StartRefused, match="no chat template"):
        start(copy)


def test_a_template_that_refuses_two_user_turns_refuses_the_start_and_one_turn_serves_it(
    copy: Path, start: Start
) -> None:
    template = (copy / "chat_template.jinja").read_text(encoding="utf-8")
    strict = (
        "{%- for turn in messages -%}{%- if (turn.role == 'user') != (loop.index0 % 2 == 0) -%}"
        "{{ raise_exception('roles must alternate') }}{%- endif -%}{%- endfor -%}"
    )
    (copy / "chat_template.jinja").write_text(strict + template, encoding="utf-8")
    with pytest.raises(StartRefused, match=r"rendering a prompt failed: .*roles must alternate"):
        start(copy)
    engine = start(copy, labels_renderer="scorer.engines.labels_prompt:render_one_turn")
    assert len(answers(engine)) == len(CALLS)


@pytest.mark.parametrize("marker", ["#", "⁠", "a⁠b"])
def test_a_marker_that_could_not_be_broken_refuses_the_start(tiny_lm: Path, start: Start, marker: str) -> None:
    with pytest.raises(StartRefused, match=f"^{PREFIX}LABELS_MARKER="):
        start(tiny_lm, labels_marker=marker)


@pytest.mark.parametrize("reference", ["no.such.module:render", "math:no_such", "math:pi"])
def test_a_renderer_that_is_not_there_refuses_the_start(tiny_lm: Path, start: Start, reference: str) -> None:
    with pytest.raises(StartRefused, match=f"^{PREFIX}LABELS_RENDERER={reference}"):
        start(tiny_lm, labels_renderer=reference)


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff"])
def test_a_system_prompt_that_cannot_be_read_refuses_the_start(
    tiny_lm: Path, start: Start, tmp_path: Path, content: bytes | None
) -> None:
    file = tmp_path / "system.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(StartRefused, match=f"^{PREFIX}LABELS_SYSTEM_PROMPT_FILE: {file}"):
        start(tiny_lm, labels_system_prompt_file=file)


def test_an_adapter_of_a_model_without_any_refuses_the_start(tiny_lm: Path, start: Start) -> None:
    with pytest.raises(StartRefused, match="no decision adapter"):
        start(tiny_lm, labels_adapter="decision", labels_marker=MARKER)


def test_a_gpu_that_is_not_there_refuses_the_start(tiny_lm: Path, start: Start) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(StartRefused, match=f"{PREFIX}DEVICE=cuda"):
        start(tiny_lm, device="cuda")


# -- identity ---


def test_the_revision_is_of_the_files_and_the_name_of_the_directory_or_the_setting(copy: Path, start: Start) -> None:
    first = start(copy).info()
    assert first.name == "copy"
    assert first.revision == first.model["revision"][:12]
    assert start(copy, labels_model_name="mine").info().served_model == f"mine@{first.revision}"
    template = copy / "chat_template.jinja"
    template.write_text(template.read_text(encoding="utf-8") + " ", encoding="utf-8")
    assert start(copy).info().revision != first.revision


def test_a_snapshot_of_a_hugging_face_cache_has_the_models_name(tiny_lm: Path, tmp_path: Path, start: Start) -> None:
    snapshot = tmp_path / "models--org--Tiny-1B" / "snapshots" / "abc"
    shutil.copytree(tiny_lm, snapshot)
    assert start(snapshot).info().name == "Tiny-1B"


# -- failures ---


@pytest.fixture
def own(tiny_lm: Path, start: Start) -> LabelsEngine:
    """An engine that a test may break."""
    return start(tiny_lm)


def failing(monkeypatch: pytest.MonkeyPatch, engine: LabelsEngine, error: Exception, after: int = 0) -> None:
    """The model raises ``error`` from its ``after``-th forward on."""
    forward, count = engine.reader.model.forward, [0]

    def fail(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        if count[0] > after:
            raise error
        return forward(*args, **kwargs)

    monkeypatch.setattr(engine.reader.model, "forward", fail)


@pytest.mark.parametrize("after", [0, 1])
def test_out_of_memory_gives_the_prefixes_back_and_the_next_request_is_answered_as_ever(
    own: LabelsEngine, after: int
) -> None:
    import torch

    expected, canary = answers(own), own.canary()
    own.predict(own.prepare("another state", CALLS)[0])
    assert own.memory()["prefix_cache_bytes"] > 0
    with pytest.MonkeyPatch.context() as patch:
        failing(patch, own, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), after)
        prepared = own.prepare(STATE, CALLS)
        with pytest.raises(OutOfMemory) as caught:
            own.predict(prepared[0])
        assert caught.value.__cause__ is caught.value.__context__ is None
        assert own.memory()["prefix_cache_bytes"] == 0
        assert prepared[0].payload[0].prefix is None
    # The same prepared calls may be asked again, as well as the request anew.
    assert [own.predict(call).answer["answers"] for call in prepared] == expected
    assert answers(own) == expected
    assert own.canary() == canary


def test_a_failed_prefix_is_no_longer_held_by_anything(own: LabelsEngine) -> None:
    made = []
    prefix = own.reader.prefix

    def watched(ids: Any) -> Any:
        result = prefix(ids)
        made.append(weakref.ref(result.layers[0][0]))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own.reader, "prefix", watched)
        patch.setattr(own.reader, "_forward", lambda *_: (_ for _ in ()).throw(RuntimeError("a kernel failed")))
        (call,) = own.prepare(STATE, CALLS[:1])
        with pytest.raises(ScoringFailed):
            own.predict(call)
    gc.collect()
    assert [one() for one in made] == [None]


def test_a_forward_that_is_not_finite_is_a_failure_and_no_answer(own: LabelsEngine) -> None:
    import torch

    with pytest.MonkeyPatch.context() as patch:
        forward = own.reader.model.forward

        def poisoned(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            output.logits = torch.full_like(output.logits, float("nan"))
            return output

        patch.setattr(own.reader.model, "forward", poisoned)
        with pytest.raises(ScoringFailed):
            answers(own)
    assert len(answers(own)) == len(CALLS)


def test_a_damaged_prefix_does_not_outlive_the_canary(own: LabelsEngine) -> None:
    import torch

    canary, expected = own.canary(), answers(own)
    with torch.inference_mode():
        for prefix, _ in own._prefixes._items.values():
            prefix.layers[0][0].fill_(9.0)
    assert answers(own) != expected
    assert own.canary() == canary
    assert answers(own) == expected


def test_the_network_is_never_asked_and_the_libraries_are_told_so(own: LabelsEngine) -> None:
    import huggingface_hub.constants

    assert huggingface_hub.constants.HF_HUB_OFFLINE


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_a_text_without_a_utf8_form_is_the_callers_fault_and_is_not_quoted(own: LabelsEngine, text: str) -> None:
    with pytest.raises(ValueError, match="UTF-8") as caught:
        own.prepare(text, CALLS)
    assert text not in str(caught.value)


def test_a_label_of_a_renderer_that_is_not_one_token_is_no_fault_of_the_callers(
    tiny_lm: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(tiny_lm)
    render = engine._prompts._renderer
    monkeypatch.setattr(engine._prompts, "_renderer", lambda *args: render(*args)._replace(labels=["not one", "B"]))
    with pytest.raises(ScoringFailed):
        engine.prepare(STATE, CALLS)
