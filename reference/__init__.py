"""How it is computed: the NumPy decoder, the oracle, the rounding noise.

`Reference` is the NumPy decoder as an implementation under test.
"""

from decoderspec.reference.model import Reference

__all__ = ["Reference"]
