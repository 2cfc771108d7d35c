"""What is asked before the call that is judged: whatever an implementation keeps of it must not count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from decoderspec.properties import strategies
from decoderspec.properties.cases import Array, Case, other_ids
from decoderspec.properties.findings import Finding
from decoderspec.properties.run import Run
from decoderspec.properties.subject import SubjectModel
from decoderspec.spec.protocol import METHODS, arguments


def settle(run: Run, case: Case, model: SubjectModel, *capabilities: str) -> None:
    """Call what the model has of these: whatever it caches of this very batch is cached now."""
    _call(model, capabilities, *run.truth(case).batch)


def unsettle(run: Run, case: Case, model: SubjectModel, *capabilities: str) -> None:
    """Call what the model has of these on other ids, other targets, larger and smaller batches; then `disturb`."""
    for batch in batches(run, case):
        _call(model, capabilities, *batch)
    disturb(run, case, model)


def disturb(run: Run, case: Case, model: SubjectModel) -> None:
    """Call all that the model has on other ids of the same shape: what was asked last, by whichever method.

    A method that fails here is held against its own requirement, not against the one that is judged, and is not asked
    in passing again: it may be a child that died, or one that answers no more.
    """
    tokens, targets = run.truth(case).batch
    for method in [each for each in METHODS if each not in run.broken]:
        try:
            _call(model, (method,), other_ids(case, tokens), targets)
        except Finding:
            run.broken.add(method)


def _call(model: SubjectModel, capabilities: tuple[str, ...], tokens: Array, targets: Array) -> None:
    for capability in filter(model.has, capabilities):
        getattr(model, capability)(*arguments(capability, tokens, targets))


def batches(run: Run, case: Case) -> Iterator[tuple[Array, Array]]:
    """Token and target ids beside those of the case: of its shape, then of others that it may be asked for."""
    tokens, targets = run.truth(case).batch
    yield other_ids(case, tokens), targets
    yield tokens, other_ids(case, targets)
    if not run.has_dear_shapes:
        yield from ((ids, ids[::-1]) for ids in reshaped(run, case))


def orders(run: Run, case: Case) -> Iterator[tuple[Array, Array]]:
    """Token and target ids, and the same with the rows reversed: one truth, but not what was kept of the first call."""
    tokens, targets = run.truth(case).batch
    yield tokens, targets
    if case.batch > 1:
        yield tokens[::-1], targets[::-1]


def reshaped(run: Run, case: Case) -> Iterator[Array]:
    """Ids of the case in other shapes within the limits: half of one row, all in one row, longer, twice the rows."""
    tokens = run.truth(case).batch[0]
    longer = np.concatenate([tokens[::-1, ::-1], tokens], axis=1)[:, : case.config.max_positions]
    half = tokens[:1, : max(1, case.tokens // 2)]
    for ids in (half, tokens.reshape(1, -1), longer, np.tile(tokens, (2, 1))):
        if ids.shape[1] <= case.config.max_positions and run.admits(ids):
            yield ids


def beside(run: Run, case: Case) -> Case:
    """The case of another model of the same sizes: other parameters; of odd seeds another base and epsilon as well.

    So that what is kept by configuration shows, and what is kept without it: the fixed cases have seeds of both kinds.
    """
    other = replace(case, seed=case.seed + 1, stored=None)
    if run.pool or case.seed % 2 == 0:  # in a pool each configuration is dear, or there is only one
        return other
    base, epsilon = (
        next((value for value in strategies.allowed(run.subject.limits, name) if value not in (0, now)), now)
        for name, now in (("rope_base", case.config.rope_base), ("rms_epsilon", case.config.rms_epsilon))
    )
    return replace(other, config=replace(case.config, rope_base=base, rms_epsilon=epsilon))
