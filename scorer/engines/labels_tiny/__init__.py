"""A tiny random chat model for the ``labels`` engine, built on the spot: the whole path, no real answers."""
