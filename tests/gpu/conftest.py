"""Nothing here is collected where torch is missing; see tests/gpu/run.sh."""

from __future__ import annotations

import importlib.util

_HERE = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
collect_ignore_glob = [] if _HERE else ["test_*.py"]
