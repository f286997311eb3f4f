"""The floor of any Flask service: one route that reads its body and answers a constant, on gunicorn's gthread with two
workers.
``python -m tests.bench.bare_flask PORT``."""

from __future__ import annotations

import sys

from flask import Flask, Response, request
from gunicorn.app.base import BaseApplication

app = Flask(__name__)


@app.post("/v1/systemone")
def answer() -> Response:
    """A constant."""
    request.get_data()
    return Response(b'{"ok":true}', mimetype="application/json")


class Bare(BaseApplication):
    """Gunicorn without a configuration file."""

    def load_config(self) -> None:
        """The same worker kind as conf/gunicorn.conf.py."""
        for name, value in {
            "bind": f"127.0.0.1:{sys.argv[1]}",
            "workers": 2,
            "worker_class": "gthread",
            "threads": 40,
            "keepalive": 75,
            "control_socket_disable": True,
        }.items():
            self.cfg.set(name, value)

    def load(self) -> Flask:
        """The application."""
        return app


if __name__ == "__main__":
    Bare().run()
