"""Conformance tests for LLaMA-style decoders: specification, reference, oracle, properties.

This file imports nothing: each part is imported from the folder that answers its question,
for example ``from decoderspec.reference import oracle``.
"""

__version__ = "0.1.0"
