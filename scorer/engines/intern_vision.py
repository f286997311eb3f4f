"""INV-7: the vision tower makes room, and proves on the way out that no text ever met it."""

from __future__ import annotations

from typing import Any

__all__ = ["drop_vision"]


def drop_vision(torch: Any, model: Any) -> None:
    """Replace ``model.model.visual`` by a stub that raises when called. Its memory comes back once the collector has
    run and the cache is emptied; whether the answers stay the same is for the caller to check."""

    # An nn.Module, because torch lets nothing else stand in a child module's place (engine/intern-decision.md §2).
    class DroppedVision(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError("the vision tower was dropped at start (INV-7), yet a forward pass called it")

    model.model.visual = DroppedVision()
