"""The two fixtures of chapters 31 and 32 of the course the specification grew from: every number that is given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from decoderspec.reference.block import DecoderBlock, DecoderBlockConfig, assemble
from decoderspec.reference.model import DecoderModel
from decoderspec.reference.operations import OPERATIONS, Array, Operations
from decoderspec.reference.parts import NamedParameter
from decoderspec.reference.splitmix64 import SplitMix64
from decoderspec.spec.config import Config
from decoderspec.spec.parameters import FINAL_GAIN, TABLE, block_shapes

STEP = 1e-6  # of the central differences
TOLERANCE = 2e-5  # of the comparison with them

# Chapter 31: one block with unit gains and identity matrices.
BLOCK_CONFIG = DecoderBlockConfig(
    model_width=4, heads=2, feed_forward_width=4, max_positions=6, rope_base=100.0, rms_epsilon=0.0
)
PREFIX = "decoder.block.0"
INPUT = np.array([[[2.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0]]])
CHANGED_ROW = np.array([1.0, -1.0, 1.0, 1.0])  # replaces the last one in the causality probe
UPSTREAM = np.array([[[1.0, -0.5, 0.25, 0.75], [-0.3, 0.8, 1.2, -0.4], [0.6, 0.1, -0.7, 0.9]]])
PROBE = np.array([[1.0, 0.0, -1.0], [0.0, 1.0, -1.0], [1.0, 1.0, 0.0], [-1.0, 0.0, 1.0]])
LAYER_NORM_EPSILON = 1e-5
RECURRENCE_INPUTS = (1.0, -0.5, 0.25)

# Chapter 32: a seeded model of two blocks, and a probe without any.
MODEL_CONFIG = Config(
    vocabulary_size=5,
    model_width=4,
    heads=2,
    feed_forward_width=4,
    layers=2,
    max_positions=4,
    rope_base=10000.0,
    rms_epsilon=1e-6,
)
SEED = 32
TOKENS = np.array([[0, 1, 2]])
TARGETS = np.array([[1, 2, 3]])
CHANGED_TOKEN = 4
PROBE_TOKENS = np.array([[0, 1]])
PROBE_TARGETS = np.array([[1, 2]])
PROBE_TABLE = np.array(
    [
        [0.8, -0.2, 0.1, 0.4],
        [-0.3, 0.7, 0.2, -0.1],
        [0.5, 0.1, -0.6, 0.3],
        [-0.4, -0.2, 0.9, 0.1],
        [0.2, 0.3, -0.1, 0.8],
    ]
)
PROBE_GAIN = np.array([1.0, 0.9, 1.1, 0.8])  # for the gradient check; the role decomposition has a unit gain


def block(operations: Operations = OPERATIONS) -> DecoderBlock:
    """The block of chapter 31."""
    shapes = block_shapes(BLOCK_CONFIG.decoder_config())
    values = [np.ones(shape) if len(shape) == 1 else np.eye(shape[0]) for shape in shapes.values()]
    named = [NamedParameter(f"{PREFIX}.{name}", value) for name, value in zip(shapes, values, strict=True)]
    return replace(assemble(BLOCK_CONFIG, named), operations=operations)


def model(operations: Operations = OPERATIONS, layers: int = MODEL_CONFIG.layers) -> DecoderModel:
    """The seeded model of chapter 32, or one of another depth."""
    seeded = DecoderModel.new(replace(MODEL_CONFIG, layers=layers), SplitMix64(SEED))
    return replace(seeded, operations=operations)


def probe_model(table: Array, gain: Array, operations: Operations = OPERATIONS) -> DecoderModel:
    """A model without blocks on that table and gain."""
    named = [NamedParameter(TABLE, table), NamedParameter(FINAL_GAIN, gain)]
    bound = DecoderModel.from_parameters(replace(MODEL_CONFIG, layers=0), named)
    return replace(bound, operations=operations)
