"""What pytest leaves out, and one thread per process: two workers with two threads each would wait for one another."""

import os
from importlib.util import find_spec

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# the examples of an adapter whose framework is not installed cannot be imported
collect_ignore = [] if find_spec("cupy") else ["src/xvarpro/backends/cupy.py"]
