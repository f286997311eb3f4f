"""The dialects. A new one is a module with ``register(app, services)`` and one line here."""

from __future__ import annotations

from web.surfaces import decisions, health, metrics, models, openapi, ready, semif, systemone

__all__ = ["SURFACES"]

SURFACES = (health, metrics, models, openapi, ready, semif, systemone, decisions)
