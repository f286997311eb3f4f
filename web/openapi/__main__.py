"""``python -m web.openapi``: write the OpenAPI document to standard output, indented."""

from __future__ import annotations

import sys

from shared.jsonio import dumps_indented
from web.openapi import document

if __name__ == "__main__":
    sys.stdout.write(dumps_indented(document()))
