"""marshmallow schemas, one module a dialect. Strict types: nothing is coerced; names that a dialect does not know are
ignored at every depth and never reach an engine."""
