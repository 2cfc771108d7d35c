"""The options, fixtures and markers live in the plugin (`properties/plugin.py`), so that they exist with the wheel."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # cases are tiny, and several workers share the cores

collect_ignore = ["src", "properties", "examples", "adapters"]
