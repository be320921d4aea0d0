#!/usr/bin/env bash
# The oldest versions that pyproject.toml allows, on tests that need neither PyTorch nor JAX. Takes uv and a version of
# Python, 3.11 by default; makes .venv-lowest.
set -euo pipefail
cd "$(dirname "$0")/.."

uv venv --quiet --clear --python "${1:-3.11}" .venv-lowest
echo "torch; sys_platform == 'none'" > .venv-lowest/without.txt
uv pip compile --quiet --python .venv-lowest --resolution lowest-direct --override .venv-lowest/without.txt \
  --extra test pyproject.toml --output-file .venv-lowest/lowest.txt
uv pip install --quiet --python .venv-lowest -r .venv-lowest/lowest.txt
uv pip install --quiet --python .venv-lowest --no-deps -e . -e ./conformance
export OMP_NUM_THREADS=1
.venv-lowest/bin/xvarpro conformance --backend numpy --quick
# packages of today warn of what old ones call: warnings are no errors here
.venv-lowest/bin/python -m pytest -n auto -W default -k "not torch and not jax" \
  tests/test_solve.py tests/test_parameters.py tests/test_report.py tests/test_cli_fit.py tests/test_intervals.py \
  tests/test_fit_figures.py tests/test_models.py tests/test_docs.py
