"""What is left of an exception that came out of the model: a fresh one, with no memory of the first (INV-4).

The frames of a failed call own its tensors, and an exception owns its frames, its cause and its context. So the first
one is classified, its origin noted, stripped and dropped; only then is memory given back; only then is a new one
raised, outside any ``except``, so that it has no context either.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from typing import TypeVar

from scorer.engines.base import EngineFailure, FatalEngineError, NonFiniteForward, OutOfMemory
from scorer.engines.torch_memory import DeviceMemory
from scorer.recovery import Afterwards, classify
from shared import logs, wire

__all__ = ["ScoringFailed", "drop_frames", "fresh", "shielded"]

T = TypeVar("T")

_log = logging.getLogger("scorer.torch")

#: ValueErrors that the pinned file raises when the forward itself came out non-finite: not the caller's fault (design
#: §5).
_NON_FINITE = frozenset({"Invalid probability distribution", "Probabilities must sum to one"})


class ScoringFailed(EngineFailure):
    """The model failed in a way that is neither the caller's fault, nor out of memory, nor known to be fatal."""


def fresh(error: Exception, out_of_memory: type[BaseException] | tuple[()] = ()) -> Exception:
    """The exception to raise instead of ``error``; it shares nothing with it.

    ``out_of_memory`` is torch's own class. The rest is :func:`scorer.recovery.classify`'s rule, plus the two messages
    of the pinned file that mean a non-finite forward. Only a ValueError keeps its text: all others may quote a state.
    """
    if isinstance(error, out_of_memory):
        return OutOfMemory("the device is out of memory")
    verdict = classify(error)
    if verdict.status == wire.OUT_OF_MEMORY:
        return OutOfMemory("the device is out of memory")
    if isinstance(error, UnicodeError):
        return ValueError("A text of the request has no UTF-8 form.")  # its own message quotes the text
    if verdict.status == wire.INVALID:
        return NonFiniteForward(str(error)) if str(error) in _NON_FINITE else ValueError(str(error))
    if verdict.afterwards is Afterwards.EXIT:
        return FatalEngineError("the device failed for good")
    return ScoringFailed(f"the engine raised {type(error).__qualname__}")


def drop_frames(error: BaseException) -> None:
    """Empty the frames of ``error`` and of every exception it is chained to, and unchain them."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        link = todo.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        todo += [link.__cause__, link.__context__]
        traceback.clear_frames(link.__traceback__)
        link.__traceback__ = link.__cause__ = link.__context__ = None


def shielded(
    work: Callable[[], T],
    memory: DeviceMemory | None,
    out_of_memory: type[BaseException] | tuple[()] = (),
    blamed: Mapping[type[Exception], str] | None = None,
) -> T:
    """``work()``'s result. Whatever it raises is replaced as :func:`fresh` says, once its frames are gone and memory is
    given back.

    ``memory`` is None for work that touches no device. ``blamed`` maps exception classes that the input is to blame for
    to the message of the ValueError that they become.
    """
    try:
        return work()
    except Exception as error:
        blame = next((text for kind, text in (blamed or {}).items() if isinstance(error, kind)), None)
        failure = fresh(error, out_of_memory) if blame is None else ValueError(blame)
        if isinstance(failure, EngineFailure):
            # Strings only: a record that kept the exception would keep the tensors (trouble.md rank 15).
            failure.origin = logs.frames(error)
        drop_frames(error)
    if memory is not None and not isinstance(failure, FatalEngineError):
        failure = _release(memory) or failure
    try:
        raise failure
    finally:
        # Its traceback holds this frame; if the frame held it in turn, only the collector could free the two.
        del failure


def _release(memory: DeviceMemory) -> Exception | None:
    try:
        memory.release()
    except Exception as error:
        # A context that cannot even give memory back is poisoned.
        _log.critical("memory could not be released", extra={"fields": logs.frames(error)})
        drop_frames(error)
        return FatalEngineError("the device failed for good")
    return None
