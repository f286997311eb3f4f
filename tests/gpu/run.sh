#!/bin/sh
# The checks of the intern and labels engines that need a CUDA card, in one go and in under ten minutes:
#     PYTHON=.venv/bin/python tests/gpu/run.sh
# What it finds goes to $OUT (default: run/gpu): the report, the tests' results and the times of first calls.
# Needs the extras [dev,intern,cuda] with a torch built for CUDA, and no network.
set -u
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-run/gpu}
mkdir -p "$OUT"

"$PYTHON" - >"$OUT/stack.txt" <<'PYTHON' || exit 1
import importlib.metadata as metadata, platform, sys
import torch
print("python", platform.python_version())
for name in ("torch", "transformers", "flash-linear-attention", "causal-conv1d", "triton"):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        print(name, "missing")
if not torch.cuda.is_available():
    sys.exit("no CUDA card")
print("card", torch.cuda.get_device_name(0), "sm_%d%d" % torch.cuda.get_device_capability(0), *torch.cuda.get_arch_list())
PYTHON
cat "$OUT/stack.txt"

# PYTEST_OPTIONS: for example "-p no:cacheprovider" on a read-only checkout.
timeout 420 "$PYTHON" -m pytest tests/gpu -m gpu -s -v --timeout 240 --junitxml "$OUT/junit.xml" ${PYTEST_OPTIONS:-} 2>&1 | tee "$OUT/pytest.txt"

# First and second call at each of ten new lengths: a kernel that is tuned anew for every length shows as a large ratio.
timeout 120 "$PYTHON" -m tests.gpu.first_calls 2>&1 | tee "$OUT/first_calls.txt"

grep -Eq '[0-9]+ passed' "$OUT/pytest.txt" && ! grep -Eq '[0-9]+ (failed|error)' "$OUT/pytest.txt"
