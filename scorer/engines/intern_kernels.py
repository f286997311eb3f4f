"""Whether the fast kernels of the linear-attention layers are really in use (trouble.md rank 50).

transformers decides that when it is imported: a package that is missing, or whose import fails, is replaced by
reference code that is right but more than ten times slower, with one line in a log. What counts is therefore not
whether a package is installed but what the functions in the model's module will call, and that is read here from those
functions.
"""

from __future__ import annotations

import inspect
import sys
from types import FunctionType, ModuleType
from typing import Any

__all__ = ["KERNELS", "kernels_in_use", "module_of"]

#: Import name to the name under which pip knows it.
KERNELS = {"fla": "flash-linear-attention", "causal_conv1d": "causal-conv1d"}


def module_of(model: Any) -> ModuleType | None:
    """The module that defines the model's class."""
    return sys.modules.get(type(model).__module__)


def kernels_in_use(modeling: ModuleType | None) -> dict[str, bool]:
    """For each kernel package, by its pip name, whether every function of ``modeling`` that could use it does.

    transformers 5.17 wraps each such function in a closure over ``package`` and ``is_new_implementation``. A package
    that no function mentions counts as not in use: what is not proven is not claimed.
    """
    found: dict[str, list[bool]] = {package: [] for package in KERNELS}
    for value in vars(modeling).values() if modeling is not None else ():
        if isinstance(value, FunctionType) and value.__closure__:
            closure = inspect.getclosurevars(value).nonlocals
            package = closure.get("package")
            if package in found and "is_new_implementation" in closure:
                found[package].append(bool(closure["is_new_implementation"]))
    return {KERNELS[package]: bool(uses) and all(uses) for package, uses in found.items()}
