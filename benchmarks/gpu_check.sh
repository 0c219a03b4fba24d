#!/bin/bash
# Correctness and a quick benchmark on a GPU machine: builds the frame hook in place, then runs the Triton cases and
# gpu_models.py. Usage: benchmarks/gpu_check.sh [arguments of gpu_models.py]
set -u
cd "$(dirname "$0")/.."
export PYTHONPATH="$(ls -d "$PWD"/packages/*/src | tr '\n' ':')${PYTHONPATH:-}" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export QUINTET_CACHE_DIR=${QUINTET_CACHE_DIR:-$(mktemp -d)} TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$(mktemp -d)}
(cd packages/dynamo-capture && python3 hatch_build.py) >/dev/null 2>&1 || echo "the frame hook did not build"
if [ "${CASES:-1}" = 1 ]; then
  (cd packages/inductor-gen/tests/gpu && PYTHONPATH="..:$PYTHONPATH" timeout 240 python3 -m pytest -q -n 12 \
    -p no:cacheprovider triton_cases.py 2>&1 | grep -v "^\(tests\|\.\)" | cut -c1-220 | tail -60)
fi
python3 benchmarks/gpu_models.py "$@"
