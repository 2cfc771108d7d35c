"""Right implementations for a soak, each by a name: a NumPy variant that sums in order, and the PyTorch example."""

import importlib.util
from pathlib import Path

from variants import VARIANTS

Sequential = next(variant for variant in VARIANTS if variant.name.startswith("sequential"))
Running = next(variant for variant in VARIANTS if variant.name.startswith("running"))


def float32_torch():
    """The example declared, and so computed, in float32."""
    file = Path(__file__).parent.parent / "examples" / "plain_torch.py"
    spec = importlib.util.spec_from_file_location("plain_torch", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return type("Float32", (module.PlainTorch,), {"precision": "float32"})()
