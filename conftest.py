"""What pytest leaves out: the examples of an adapter whose framework is not installed cannot be imported."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("cupy") else ["src/xvarpro/backends/cupy.py"]
