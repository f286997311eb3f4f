"""A real nginx in front of a :class:`~tests.harness.Pair`, started from conf/nginx.conf with other addresses."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from tests.harness import ROOT, Pair, free_port, short_dir, wait_for

#: Debian puts it where an ordinary user's PATH does not look.
BINARY = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")

needs_nginx = pytest.mark.skipif(BINARY is None, reason="there is no nginx on this machine (Debian: nginx-light)")

_MAIN = """
{user}
worker_processes 1;
daemon off;
pid {dir}/nginx.pid;
error_log {dir}/error.log info;
events {{ worker_connections 1024; }}
http {{
    client_body_temp_path {dir}/body;
    proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi;
    scgi_temp_path {dir}/scgi;
    access_log {dir}/access.log;
    include {dir}/decision.conf;
}}
"""


class Front(Pair):
    """The pair as its callers see it, through nginx: ``port`` is nginx's, all else the pair's, which is ``behind``."""

    def __init__(self, behind: Pair, changes: Mapping[str, str]) -> None:
        """``changes``: texts of the shipped file and what to put in their place."""
        self.behind = behind
        self.port = free_port()
        self.home = short_dir()
        text = (ROOT / "conf" / "nginx.conf").read_text()
        addresses = {
            "listen 80;": f"listen 127.0.0.1:{self.port};",
            "server 127.0.0.1:8000 ": f"server 127.0.0.1:{behind.port} ",
        }
        for old, new in {**addresses, **changes}.items():
            assert old in text, f"conf/nginx.conf has no {old!r}"
            text = text.replace(old, new)
        (self.home / "decision.conf").write_text(text)
        # Started by root, its worker would be another user, who cannot enter the directory.
        user = "user root;" if os.geteuid() == 0 else ""
        (self.home / "nginx.conf").write_text(_MAIN.format(dir=self.home, user=user))
        assert BINARY is not None
        command = [
            BINARY,
            "-p",
            str(self.home),
            "-e",
            str(self.home / "error.log"),
            "-c",
            str(self.home / "nginx.conf"),
        ]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        wait_for(self._listening, 10, "nginx")

    def _listening(self) -> bool:
        assert self.process.poll() is None, self.nginx_log()
        return (self.home / "nginx.pid").is_file() and self.request("GET", "/nothing")[0] > 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.behind, name)

    def nginx_log(self) -> str:
        """Everything nginx has logged as an error."""
        return (self.home / "error.log").read_text(errors="replace")

    def close(self) -> None:
        """Stop nginx; the pair goes on."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)


@contextmanager
def front(behind: Pair, changes: Mapping[str, str] = {}) -> Iterator[Front]:
    """A front for one ``with`` block."""
    made = Front(behind, changes)
    try:
        yield made
    finally:
        made.close()
