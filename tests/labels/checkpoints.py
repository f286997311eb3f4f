"""The checkpoints that the ``labels`` engine is tested with, each built in code from a fixed seed."""

from __future__ import annotations

from scorer.engines.labels_tiny.build import build_tiny_lm

__all__ = ["build_tiny_lm"]
