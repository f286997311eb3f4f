"""What both tiers must agree on: messages, strict JSON, slots, settings, logs, the run directory."""
