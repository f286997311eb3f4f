"""The gunicorn target: ``gunicorn -c conf/gunicorn.conf.py web.wsgi:app``.

A setting that is bad fails the import, and gunicorn stops with it instead of respawning workers for ever.
"""

from __future__ import annotations

import logging

from shared import logs
from shared.settings import WebSettings, unknown_names
from web.app import create_app

__all__ = ["app"]

_settings = WebSettings.from_env()
logs.configure(_settings.log_format, _settings.log_level)
for _name in unknown_names():
    logging.getLogger("web").warning("unknown setting", extra={"fields": {"name": _name}})
app = create_app(_settings)
