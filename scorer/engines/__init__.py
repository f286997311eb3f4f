"""The engines. A new one is a module with a class of :class:`scorer.engines.base.Engine`'s shape, and one line here."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scorer.engines.base import Engine
    from shared.settings import ScorerSettings

__all__ = ["ENGINES", "create"]

#: Imported only when chosen: an engine's libraries need not be installed for another one.
ENGINES = {
    "intern": "scorer.engines.intern:InternEngine",
    "labels": "scorer.engines.labels:LabelsEngine",
    "sparrow": "scorer.engines.sparrow:SparrowEngine",
    "fake": "scorer.engines.fake:FakeEngine",
}


def create(settings: ScorerSettings) -> Engine:
    """The engine that ``settings.engine`` names, not loaded yet.

    Raises :class:`StartRefused` when there is none or a library it needs is missing.
    """
    # Here, because conf/serve.py reads the names above before anything is installed.
    from scorer.engines.base import StartRefused

    try:
        module, _, name = ENGINES[settings.engine].partition(":")
        factory = getattr(importlib.import_module(module), name)
    except KeyError:
        known = ", ".join(sorted(ENGINES))
        raise StartRefused(
            f"INTERN_DECISION_ENGINE: there is no engine {settings.engine!r}; there are {known}"
        ) from None
    except ModuleNotFoundError as error:
        raise StartRefused(
            f"INTERN_DECISION_ENGINE={settings.engine} needs the package {error.name!r}: "
            f"pip install 'intern-decision-serve[{settings.engine}]'"
        ) from None
    engine: Engine = factory(settings)
    return engine
