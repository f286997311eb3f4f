"""A tiny random checkpoint for the ``intern`` engine; :mod:`scorer.engines.intern_tiny.build` builds it."""
