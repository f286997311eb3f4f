"""The web tier: HTTP, auth, limits, validation and result assembly. Knows nothing of models."""
