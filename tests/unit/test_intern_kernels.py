"""Which kernels count as in use: what the model's functions will call, not what is installed."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from scorer.engines.intern_kernels import kernels_in_use

BOTH = {"flash-linear-attention": True, "causal-conv1d": True}


def wrapped(package: str, is_new_implementation: bool) -> Callable[[], Any]:
    """A function as transformers 5.17 wraps it."""

    def function() -> Any:
        return package, is_new_implementation

    return function


def modeling(**functions: Any) -> ModuleType:
    module = ModuleType("modeling")
    vars(module).update(functions)
    return module


def test_kernels_that_every_function_calls_are_in_use() -> None:
    assert (
        kernels_in_use(modeling(a=wrapped("fla", True), b=wrapped("causal_conv1d", True), c=wrapped("fla", True)))
        == BOTH
    )


def test_one_function_on_reference_code_means_not_in_use() -> None:
    module = modeling(a=wrapped("fla", True), b=wrapped("causal_conv1d", True), c=wrapped("fla", False))
    assert kernels_in_use(module) == {**BOTH, "flash-linear-attention": False}


def test_what_is_not_proven_is_not_claimed() -> None:
    neither = dict.fromkeys(BOTH, False)
    assert kernels_in_use(None) == neither
    assert kernels_in_use(modeling(number=1, plain=modeling, other=wrapped("mamba_ssm", True))) == neither
