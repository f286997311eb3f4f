"""The contract's list "Engine load (fake)" and INV-3, 4, 5, 7, 8 at start: every reason not to serve, each with its
message."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from scorer.engines import intern_checkpoint, torch_start
from scorer.engines.base import FatalEngineError, StartRefused
from scorer.engines.intern import InternEngine
from shared.settings import ScorerSettings
from tests.unit.intern_fakes import (  # noqa: F401 - the last two are fixtures
    GIB,
    INFERENCE,
    REVISION,
    FakeTorch,
    Snapshot,
    answer,
    fake_snapshot,
    fake_torch,
)


def refusal(snapshot: Snapshot, **changes: str) -> str:
    """The message with which an engine refuses to start."""
    with pytest.raises(StartRefused) as caught:
        snapshot.engine(**changes).load()
    return str(caught.value)


# INV-3: the file and its path


def test_a_wrong_hash_refuses_to_start_naming_file_expected_and_found(snapshot: Snapshot, torch: FakeTorch) -> None:
    path = snapshot.path / "inference.py"
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    path.write_text(INFERENCE + "\n")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    message = refusal(snapshot)
    assert str(path) in message
    assert expected in message
    assert found in message
    assert torch.events == []


def test_a_path_that_is_not_the_pinned_snapshot_refuses_to_start(snapshot: Snapshot, torch: FakeTorch) -> None:
    other = snapshot.root / "snapshots" / ("cd" * 20)
    snapshot.path.rename(other)
    message = refusal(snapshot, checkpoint=str(other))
    assert "INTERN_DECISION_CHECKPOINT" in message
    assert f"snapshots/{REVISION}" in message
    assert str(other) in message


def test_a_snapshot_directory_that_is_not_there_refuses_to_start(snapshot: Snapshot, torch: FakeTorch) -> None:
    assert "is not a directory" in refusal(snapshot, checkpoint=f"/nowhere/snapshots/{REVISION}")


def test_a_snapshot_without_the_file_refuses_to_start(snapshot: Snapshot, torch: FakeTorch) -> None:
    (snapshot.path / "inference.py").unlink()
    assert f"{snapshot.path}/inference.py: No such file or directory" in refusal(snapshot)


def test_without_a_pins_file_only_the_built_in_release_is_served(snapshot: Snapshot, torch: FakeTorch) -> None:
    engine = InternEngine(ScorerSettings.from_env({"INTERN_DECISION_CHECKPOINT": str(snapshot.path)}))
    with pytest.raises(StartRefused, match="snapshots/0e5e6aa7d6d750e2b1504ba11a8136cb58aeb3cd"):
        engine.load()


def test_a_bad_pins_file_refuses_to_start_naming_the_setting(snapshot: Snapshot, torch: FakeTorch) -> None:
    snapshot.pins.write_text("{}")
    assert refusal(snapshot).startswith("INTERN_DECISION_PINS_FILE: ")


def test_a_pins_file_that_names_another_model_than_the_file_itself_refuses_to_start(
    snapshot: Snapshot, torch: FakeTorch
) -> None:
    snapshot.write(INFERENCE, name="Other-Model")
    assert "expected MODEL_NAME Other-Model, found Fake-Decision" in refusal(snapshot)


def test_a_trailing_slash_is_accepted(snapshot: Snapshot, torch: FakeTorch) -> None:
    snapshot.loaded(checkpoint=f"{snapshot.path}/")


def test_a_symlinked_root_is_accepted_and_handed_on_unresolved(
    snapshot: Snapshot, torch: FakeTorch, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(snapshot.root)
    snapshot.loaded(checkpoint=str(link / "snapshots" / REVISION))
    assert torch.constructed_with[0] == str(link / "snapshots" / REVISION)


def test_a_link_that_points_at_the_snapshot_is_accepted(snapshot: Snapshot, torch: FakeTorch, tmp_path: Path) -> None:
    link = tmp_path / "model"
    link.symlink_to(snapshot.path)
    snapshot.loaded(checkpoint=str(link))


def test_a_snapshot_directory_that_is_itself_a_link_to_elsewhere_counts_as_it_is_written(
    snapshot: Snapshot, torch: FakeTorch
) -> None:
    elsewhere = snapshot.root / "elsewhere"
    snapshot.path.rename(elsewhere)
    snapshot.path.symlink_to(elsewhere)
    snapshot.loaded()
    assert torch.constructed_with[0] == str(snapshot.path)


def test_a_hugging_face_cache_whose_files_link_into_blobs_is_accepted(snapshot: Snapshot, torch: FakeTorch) -> None:
    blob = snapshot.root / "blobs" / "0123"
    blob.parent.mkdir()
    (snapshot.path / "inference.py").rename(blob)
    (snapshot.path / "inference.py").symlink_to("../../blobs/0123")
    snapshot.loaded()
    assert torch.constructed_with[0] == str(snapshot.path)


def test_the_bytes_that_were_hashed_are_the_bytes_that_run(
    snapshot: Snapshot, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Path.read_bytes
    reads = []

    def swapped_after_the_first_read(path: Path) -> bytes:
        data = read(path)
        if path.name == "inference.py":
            reads.append(path)
            path.write_text("raise SystemExit('other code')")
        return data

    monkeypatch.setattr(Path, "read_bytes", swapped_after_the_first_read)
    snapshot.loaded()
    assert reads == [snapshot.path / "inference.py"]


def test_the_module_is_registered_before_it_runs(snapshot: Snapshot, torch: FakeTorch) -> None:
    snapshot.write(
        "import sys\nassert sys.modules[__name__].__file__ == __file__\n"
        + INFERENCE.replace("from __future__ import annotations\n", "")
    )
    snapshot.loaded()


def test_the_engines_own_future_imports_do_not_reach_the_file(snapshot: Snapshot, torch: FakeTorch) -> None:
    text = INFERENCE.replace("from __future__ import annotations\n", "")
    snapshot.write(text + "\ndef f(x: int): ...\nassert f.__annotations__ == {'x': int}\n")
    snapshot.loaded()


def test_a_file_that_this_python_cannot_parse_refuses_to_start_naming_the_version(
    snapshot: Snapshot, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot.write("x = (\n")
    monkeypatch.setattr(sys, "version_info", (3, 11, 9, "final", 0))
    message = refusal(snapshot)
    assert "Python 3.11.9 cannot parse it (line 1)" in message
    assert "needs Python 3.12" in message
    assert torch.events == []


def test_a_file_whose_imports_are_missing_refuses_to_start_naming_them(snapshot: Snapshot, torch: FakeTorch) -> None:
    snapshot.write("import a_library_that_is_not_there\n")
    assert "No module named 'a_library_that_is_not_there'" in refusal(snapshot)
    assert intern_checkpoint.MODULE_NAME not in sys.modules


# INV-5: no network


def test_the_offline_variables_are_set_before_torch_is_imported(
    snapshot: Snapshot, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, str | None] = {}

    def import_module(name: str) -> Any:
        seen.update({variable: os.environ.get(variable) for variable in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")})
        assert name == "torch"
        return torch

    monkeypatch.setattr(torch_start.importlib, "import_module", import_module)
    snapshot.loaded()
    assert seen == {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


def test_a_hub_library_that_was_imported_online_refuses_to_start(
    snapshot: Snapshot, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = ModuleType("huggingface_hub.constants")
    constants.HF_HUB_OFFLINE = False  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub.constants", constants)
    assert "HF_HUB_OFFLINE" in refusal(snapshot)


def test_a_missing_torch_refuses_to_start_and_says_what_to_install(
    snapshot: Snapshot, torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install 'intern-decision-serve[intern]'" in refusal(snapshot)


# INV-3: the device


def test_cuda_without_a_card_refuses_to_start_and_does_not_fall_back_to_the_cpu(
    snapshot: Snapshot, torch: FakeTorch
) -> None:
    torch.cuda.is_available = lambda: False
    assert "INTERN_DECISION_DEVICE=cuda" in refusal(snapshot)
    assert torch.events == []


def test_a_card_that_torch_is_not_built_for_refuses_to_start_naming_both(snapshot: Snapshot, torch: FakeTorch) -> None:
    torch.cuda.get_device_capability = lambda index: (12, 0)
    message = refusal(snapshot)
    assert "Fake Card is sm_120" in message
    assert "sm_80 sm_90" in message


def test_the_cpu_is_used_only_when_asked_for(snapshot: Snapshot, torch: FakeTorch) -> None:
    del torch.cuda
    torch.cuda = SimpleNamespace()  # any call would fail
    engine = snapshot.loaded(device="cpu")
    assert engine.info().device == "cpu"
    assert engine.memory() == {}
    assert torch.constructed_with[1]["device"] == "cpu"


def test_a_model_that_is_not_all_on_the_device_refuses_to_start(snapshot: Snapshot, torch: FakeTorch) -> None:
    torch.placement = ("cuda", "cpu")
    assert "parts of the model are on cpu, cuda" in refusal(snapshot)


# INV-4: the cap


def test_the_cap_is_applied_before_the_engine_is_constructed(snapshot: Snapshot, torch: FakeTorch) -> None:
    snapshot.engine(vram_cap_gib="20").load()
    assert torch.events[:2] == [("cap", 0.25), "construct"]


def test_without_a_cap_none_is_applied(snapshot: Snapshot, torch: FakeTorch) -> None:
    snapshot.engine().load()
    assert torch.events[0] == "construct"


def test_a_cap_above_the_card_refuses_to_start(snapshot: Snapshot, torch: FakeTorch) -> None:
    assert refusal(snapshot, vram_cap_gib="80.1") == "INTERN_DECISION_VRAM_CAP_GIB is 80.1, but the card has 80.00 GiB"
    assert torch.events == []


def test_a_cap_on_a_cpu_refuses_to_start(snapshot: Snapshot, torch: FakeTorch) -> None:
    assert "INTERN_DECISION_VRAM_CAP_GIB" in refusal(snapshot, vram_cap_gib="8", device="cpu")


@pytest.mark.parametrize("error", [FakeTorch.OutOfMemoryError("x"), RuntimeError("CUDA error: out of memory")])
def test_a_cap_below_the_weights_refuses_to_start_naming_the_cap(
    snapshot: Snapshot, torch: FakeTorch, error: Exception
) -> None:
    torch.construct = lambda: raises(error)
    message = refusal(snapshot, vram_cap_gib="8.5")
    assert "INTERN_DECISION_VRAM_CAP_GIB=8.5 is too small" in message


def test_the_baseline_is_what_is_left_after_the_last_warm_up(snapshot: Snapshot, torch: FakeTorch) -> None:
    def forward(decider: Any, request: Any) -> Any:
        torch.reserved = 12 * GIB
        return answer(decider, request)

    def empty_cache() -> None:
        torch.reserved = 8 * GIB

    torch.forward, torch.cuda.empty_cache = forward, empty_cache
    engine = snapshot.engine()
    engine.load()
    assert engine.memory()["baseline"] == 8 * GIB


def test_a_checkpoint_that_does_not_load_refuses_to_start_with_the_files_own_message(
    snapshot: Snapshot, torch: FakeTorch
) -> None:
    torch.construct = lambda: raises(ValueError("Decision marker exceeds checkpoint vocabulary"))
    message = refusal(snapshot)
    assert str(snapshot.path) in message
    assert "Decision marker exceeds checkpoint vocabulary" in message


def test_a_device_that_fails_for_good_while_loading_is_left_to_a_restart(snapshot: Snapshot, torch: FakeTorch) -> None:
    torch.construct = lambda: raises(RuntimeError("CUDA error: unspecified launch failure"))
    with pytest.raises(FatalEngineError):
        snapshot.engine().load()


def test_a_warm_up_that_fails_refuses_to_start(snapshot: Snapshot, torch: FakeTorch) -> None:
    torch.forward = lambda decider, request: raises(ValueError("Invalid probability distribution"))
    assert "scoring the warm-up failed: ValueError: Invalid probability distribution" in refusal(snapshot)


def test_max_tokens_is_the_files_max_length_and_below_the_warm_up_it_refuses_to_start(
    snapshot: Snapshot, torch: FakeTorch
) -> None:
    engine = snapshot.loaded(max_tokens="4096")
    assert torch.constructed_with[1]["max_length"] == 4096
    assert engine.info().limits.tokens == 4096
    assert "INTERN_DECISION_MAX_TOKENS=3" in refusal(snapshot, max_tokens="3")


# INV-7: the vision tower


def test_the_vision_tower_becomes_a_stub_that_raises_when_called(snapshot: Snapshot, torch: FakeTorch) -> None:
    engine = snapshot.loaded()
    stub = engine._decider.backend.model.model.visual
    assert isinstance(stub, torch.nn.Module)
    with pytest.raises(RuntimeError, match="INV-7"):
        stub("pixels")
    assert engine.info().model["vision"] == "dropped"


def test_the_vision_tower_goes_after_the_first_warm_up_and_before_the_second(
    snapshot: Snapshot, torch: FakeTorch
) -> None:
    towers = []

    def forward(decider: Any, request: Any) -> Any:
        towers.append(decider.backend.model.model.visual)
        return answer(decider, request)

    torch.forward = forward
    snapshot.engine().load()
    assert towers[0] == "the tower"
    assert isinstance(towers[1], torch.nn.Module)


def test_a_warm_up_that_changes_by_one_bit_without_the_tower_refuses_to_start(
    snapshot: Snapshot, torch: FakeTorch
) -> None:
    def forward(decider: Any, request: Any) -> Any:
        out = answer(decider, request)
        if decider.backend.model.model.visual != "the tower":
            next(iter(out["answers"].values()))["noul"] += 2**-52
        return out

    torch.forward = forward
    message = refusal(snapshot)
    assert "INV-7" in message
    assert "INTERN_DECISION_KEEP_VISION=1" in message
    snapshot.loaded(keep_vision="1")


def test_keep_vision_keeps_the_tower(snapshot: Snapshot, torch: FakeTorch) -> None:
    engine = snapshot.loaded(keep_vision="1")
    assert engine._decider.backend.model.model.visual == "the tower"
    assert engine.info().model["vision"] == "kept"


# INV-8: the prompt hash


def test_a_token_count_that_predict_does_not_report_refuses_to_start(snapshot: Snapshot, torch: FakeTorch) -> None:
    def forward(decider: Any, request: Any) -> Any:
        out = answer(decider, request)
        out["usage"]["input_tokens"] += 1
        return out

    torch.forward = forward
    assert "INV-8" in refusal(snapshot)


def test_the_prompt_is_rendered_with_the_files_template_arguments_and_hashed(
    snapshot: Snapshot, torch: FakeTorch
) -> None:
    engine = snapshot.loaded()
    first, second = engine.prepare(
        "the state", [{"q": {"type": "noul"}}, {"q1": {"type": "noul"}, "q2": {"type": "noul"}}]
    )
    assert torch.template_arguments == {
        "tokenize": False,
        "add_generation_prompt": False,
        "enable_thinking": False,
        "add_vision_id": True,
    }
    assert first.prompt_sha256 == hashlib.sha256(b"the state <decision>").hexdigest()
    assert second.prompt_sha256 == hashlib.sha256(b"the state <decision> <decision>").hexdigest()
    assert (first.input_tokens, second.input_tokens) == (3, 4)


# The kernels


@pytest.mark.parametrize(
    ("fla", "conv", "missing"),
    [
        (False, True, "flash-linear-attention"),
        (True, False, "causal-conv1d"),
        (False, False, "flash-linear-attention, causal-conv1d"),
    ],
)
def test_a_missing_kernel_on_cuda_refuses_to_start(
    snapshot: Snapshot, torch: FakeTorch, fla: bool, conv: bool, missing: str
) -> None:
    torch.fla_in_use, torch.conv_in_use = fla, conv
    message = refusal(snapshot)
    assert f"not in use: {missing};" in message
    assert "INTERN_DECISION_ALLOW_SLOW_KERNELS=1" in message


def test_a_missing_kernel_is_allowed_by_the_setting_and_shown(
    snapshot: Snapshot, torch: FakeTorch, caplog: pytest.LogCaptureFixture
) -> None:
    torch.conv_in_use = False
    engine = snapshot.loaded(allow_slow_kernels="1")
    assert engine.info().model["kernels"] == {"flash-linear-attention": True, "causal-conv1d": False}
    assert any(record.getMessage() == "slow kernels" for record in caplog.records)


def test_kernels_are_not_asked_for_on_a_cpu(snapshot: Snapshot, torch: FakeTorch) -> None:
    torch.fla_in_use = torch.conv_in_use = False
    snapshot.loaded(device="cpu")


# The description


def test_the_description_carries_the_pins_and_the_stack(snapshot: Snapshot, torch: FakeTorch) -> None:
    info = snapshot.loaded(vram_cap_gib="20").info()
    sha256 = hashlib.sha256(INFERENCE.encode()).hexdigest()
    assert info.served_model == f"Fake-Decision@{REVISION}"
    assert (
        info.model
        | {
            "source": "Fake-Decision",
            "revision": REVISION,
            "inference_sha256": sha256,
            "dtype": "bfloat16",
            "device": "cuda",
            "torch_version": "0+fake",
        }
        == info.model
    )
    assert sha256[:12] in info.prompt_version
    assert "T=2.0" in info.probability_status
    assert info.calibration == {"method": "temperature-scaling", "temperature": 2.0}
    assert (info.device, info.vram_cap_gib, info.default_profile) == ("Fake Card", 20.0, "native")
    assert (info.limits.questions, info.limits.options, info.limits.tokens) == (16, 62, 8192)
    assert info.from_json(info.to_json()) == info


def test_the_engine_is_described_only_once_it_is_loaded(snapshot: Snapshot, torch: FakeTorch) -> None:
    with pytest.raises(RuntimeError):
        snapshot.engine().info()


def raises(error: Exception) -> Any:
    raise error
