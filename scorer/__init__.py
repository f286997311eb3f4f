"""The scorer: one process, one engine, one inference thread. Knows nothing of HTTP."""
