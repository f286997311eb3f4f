"""The JavaScript clients, npm's ``openai`` and ``ai``, pinned in ``node/package.json``, against the running service.

They are installed into a folder of the run; where node, npm or the registry is missing the test is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.harness import TOKEN, Pair

HERE = Path(__file__).parent / "node"
#: What npm says when it cannot reach its registry, or is told to stay offline.
UNREACHABLE = ("ENOTFOUND", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "EAI_AGAIN", "ENOTCACHED", "network")


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the clients and their script."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    folder = tmp_path_factory.mktemp("node")
    for name in ("package.json", "clients.mjs"):
        shutil.copy(HERE / name, folder)
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm did not finish installing the clients in 100 s")
    if done.returncode and any(word in done.stderr for word in UNREACHABLE):
        pytest.skip("npm cannot reach its registry")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.timeout(180)
def test_the_javascript_clients_work_once_their_base_url_is_changed(packages: Path, served: Pair) -> None:
    env = {**os.environ, "BASE_URL": f"http://127.0.0.1:{served.port}/v1", "TOKEN": TOKEN}
    done = subprocess.run(
        ["node", "clients.mjs"], cwd=packages, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok ") == 6
    assert "not ok" not in done.stdout
