"""The dialects. A new one is a module with ``register(app, services)`` and one line here."""

from __future__ import annotations

from web.surfaces import health, models, ready, semif, systemone

__all__ = ["SURFACES"]

SURFACES = (health, models, ready, semif, systemone)
