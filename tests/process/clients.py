"""HTTP clients that callers use, each with its own way of sending a body before it reads the answer."""

from __future__ import annotations

import http.client
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import pytest
import requests

from tests.harness import strict_json

__all__ = ["CLIENTS"]

Answer = tuple[int, Any]


def by_urllib(url: str, data: bytes, token: str) -> Answer:
    request = urllib.request.Request(url, data, {"Authorization": f"Bearer {token}"}, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, strict_json(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, strict_json(error.read())


def by_http_client(url: str, data: bytes, token: str) -> Answer:
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=20)
    try:
        connection.request("POST", parts.path, data, {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, strict_json(response.read())
    finally:
        connection.close()


def by_requests(url: str, data: bytes, token: str) -> Answer:
    with requests.post(url, data=data, headers={"Authorization": f"Bearer {token}"}, timeout=20) as response:
        return response.status_code, strict_json(response.content)


def by_curl(url: str, data: bytes, token: str) -> Answer:
    command = ["curl", "-sS", "-m", "20", "-w", "\n%{http_code}", "-H", f"Authorization: Bearer {token}"]
    command += ["-H", "Content-Type: application/json", "--data-binary", "@-", url]
    done = subprocess.run(command, input=data, capture_output=True, check=True, timeout=30)
    body, _, status = done.stdout.rpartition(b"\n")
    return int(status), strict_json(body)


CLIENTS = [
    by_urllib,
    by_http_client,
    by_requests,
    pytest.param(by_curl, marks=pytest.mark.skipif(not shutil.which("curl"), reason="no curl")),
]
