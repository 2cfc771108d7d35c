"""The implementation under test as the properties see it: canonical names, float64, plain findings.

Applies the declared layout and precision, reads whatever array type comes back, keeps at most two models alive, and
turns every way in which a call can go wrong into a finding.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from decoderspec.properties.cases import Array, Case, draw_parameters
from decoderspec.properties.checkpoint import BUILD, Checkpoint, read_checkpoint
from decoderspec.properties.conduct import watched
from decoderspec.properties.findings import Absent, Finding, user_frames
from decoderspec.spec.arrays import ArrayError, round_to, to_numpy
from decoderspec.spec.config import Config
from decoderspec.spec.layout import Layout, LayoutError, layout
from decoderspec.spec.parameters import parameter_count, parameter_shapes
from decoderspec.spec.precision import DeclarationError, Recipe, recipe
from decoderspec.spec.protocol import CAPABILITIES, CONTRACTS
from decoderspec.spec.shown import MOST, cut, shown
from decoderspec.spec.stages import stage_names, stage_shape

DECLARED = ("name", "precision", "layout", "limits", "claims", "emulates")
EMULATIONS = ("batch", "causal")  # a loop over rows, one call per prefix
ALIVE = 2  # models at a time: a build may hold a device's memory


@dataclass(repr=False)
class Subject:
    """An implementation with its declarations read."""

    implementation: Any
    name: str
    recipe: Recipe
    layout: Layout
    limits: Mapping[str, Any]
    claims: tuple[str, ...] | None
    emulates: tuple[str, ...] = ()
    models: OrderedDict[Any, SubjectModel] = field(default_factory=OrderedDict)
    dtypes: dict[str, str] = field(default_factory=dict)  # as returned, by what returned it
    builds: int = 0
    checkpoint: Checkpoint | None = None  # where it has `load` and no `build`

    def model(self, case: Case, changed: Mapping[str, Array] | None = None) -> SubjectModel:
        """The model of a case, built once while it is among the last two; `changed` parameters make it a new one."""
        if self.checkpoint is not None:
            self.checkpoint.require(case.config)
            return SubjectModel(self, case.config, _with_logits("load", self.checkpoint.model))
        key = (case.config, case.seed, case.style, case.stored)
        if changed is None and key in self.models:
            self.models.move_to_end(key)
            return self.models[key]
        parameters = self.parameters(case) | dict(changed or {})
        model = self.build(case.config, parameters)
        if changed is None:
            self.models[key] = model
            while len(self.models) > ALIVE:
                self.models.popitem(last=False)[1].close()
        return model

    def parameters(self, case: Case) -> dict[str, Array]:
        """Canonical parameters exactly as the implementation gets them: through its layout and its precision.

        Of a checkpoint those that it hands out. Raises `Absent` where it has none of that configuration.
        """
        if self.checkpoint is not None:
            self.checkpoint.require(case.config)
            return self.checkpoint.parameters
        drawn = draw_parameters(case, self.recipe)
        return self.layout.invert(case.config, self.theirs(case.config, drawn))

    def theirs(self, config: Config, canonical: Mapping[str, Array]) -> dict[str, Array]:
        """Their tensors, rounded to the declared precision of the weights."""
        tensors = self.layout.apply(config, canonical)
        return {name: round_to(value, self.recipe.weights) for name, value in tensors.items()}

    def build(self, config: Config, canonical: Mapping[str, Array]) -> SubjectModel:
        """A fresh model; of a checkpoint it is loaded again. Raises `Absent` where that has other parameters."""
        self.builds += 1
        if self.checkpoint is not None:
            if canonical is not self.checkpoint.parameters:
                raise Absent(BUILD)
            again = called("load", read_checkpoint, self.implementation, self.layout)
            return SubjectModel(self, config, _with_logits("load", again.model))
        made = called("build", self.implementation.build, own(config), self.theirs(config, canonical))
        return SubjectModel(self, config, _with_logits("build", made))

    def initialize(self, config: Config, seed: int) -> SubjectModel:
        """A model that draws its own parameters."""
        self.need_on(self.implementation, "initialize")
        made = called("initialize", self.implementation.initialize, own(config), seed)
        return SubjectModel(self, config, _with_logits("initialize", made))

    def need_on(self, owner: Any, capability: str) -> None:
        """Raise `Absent` unless the owner offers the capability."""
        if not offers(owner, capability):
            raise Absent(CAPABILITIES[capability])

    def close(self) -> None:
        """Let go of every model."""
        while self.models:
            self.models.popitem()[1].close()


def _with_logits(what: str, made: Any) -> Any:
    """What was built, which must be a model of some kind."""
    if not any(offers(made, method) for method in ("logits", *CAPABILITIES)):
        raise Finding(f"{what} returned {type(made).__name__}, which has no method logits(tokens)", what)
    return made


@dataclass(repr=False)
class SubjectModel:
    """A built model; every result is canonical, float64 and a copy of its own."""

    subject: Subject
    config: Config
    model: Any
    tokens: int = 0  # the most that were handed in at once

    def has(self, capability: str) -> bool:
        """Whether the model offers an optional method."""
        return offers(self.model, capability)

    def logits(self, tokens: Array) -> Array:
        """`[B, T, V]`; a wrong shape is a finding."""
        if not self.has("logits"):
            raise Finding(f"the model is a {type(self.model).__name__} without a method logits(tokens)", "logits")
        value = self._read("logits", self._call("logits", fresh(tokens)))
        expected = (*tokens.shape, self.config.vocabulary_size)
        if value.shape != expected:
            raise Finding(f"logits have shape {value.shape}, the specification says {expected}", "logits")
        return value

    def loss(self, tokens: Array, targets: Array) -> float:
        """A single number."""
        value = self._read("loss", self._call("loss", fresh(tokens), fresh(targets)))
        if value.size != 1:
            raise Finding(f"the loss has shape {value.shape}, the specification says a single number", "loss")
        return float(value.reshape(()))

    def gradients(self, tokens: Array, targets: Array) -> dict[str, Array]:
        """By canonical name, in the shapes of the parameters."""
        theirs = self._mapping("gradients", fresh(tokens), fresh(targets))
        return self._checked("gradient", self._through(self.subject.layout.adjoint, theirs))

    def role_gradients(self, tokens: Array, targets: Array) -> tuple[Array, Array]:
        """Of the table, as the lookup and as the head."""
        pair = self._call("role_gradients", fresh(tokens), fresh(targets))
        with reading("role_gradients"):
            values = list(pair) if isinstance(pair, Sequence) and len(pair) == 2 else []
        if not values:
            raise Finding("role_gradients must return a pair (lookup, head)", "gradients")
        lookup, head = (self._read("role_gradients", value) for value in values)
        expected = (self.config.vocabulary_size, self.config.model_width)
        for role, value in (("lookup", lookup), ("head", head)):
            if value.shape != expected:
                raise Finding(f"the {role} gradient has shape {value.shape}, expected {expected}", "gradients")
        return lookup, head

    def parameters(self) -> dict[str, Array]:
        """By canonical name, in the order in which they came."""
        return self._through(self.subject.layout.invert, self._mapping("parameters"))

    def assign(self, name: str, value: Array) -> None:
        """Write one canonical parameter in place; only where it is a tensor of its own in their layout."""
        self.subject.need_on(self.model, "assign")
        their_name = self.subject.layout.rename(self.config).get(name)
        if their_name is None:
            raise Absent(f"{name} shares a tensor with others in the declared layout, so it is not assigned alone")
        (theirs,) = self.subject.theirs(self.config, {name: value}).values()
        self._call("assign", their_name, theirs)

    def stages(self, tokens: Array) -> dict[str, Array]:
        """The stages that are offered, by canonical name; an unknown name or a wrong shape is a finding."""
        given = self._mapping("stages", fresh(tokens))
        known = set(stage_names(self.config.layers))
        for name, value in given.items():
            if name not in known:
                raise Finding(f"stages has {name!r}, which is not a stage of the specification", name)
            expected = stage_shape(name, self.config, *tokens.shape)
            if value.shape != expected:
                raise Finding(f"stage {name} has shape {value.shape}, the specification says {expected}", name)
        return self.subject.layout.stages(self.config, given)

    def raw(self, capability: str, *arguments: Array) -> Any:
        """What a method returns, unread: it may still belong to the implementation."""
        return self._call(capability, *map(fresh, arguments))

    def read(self, what: str, value: Any) -> dict[str, Array]:
        """A raw result as it is now: a copy of each of its arrays."""
        with reading(what):
            if what == "role_gradients":
                value = dict(zip(("lookup", "head"), value, strict=True))
            entries = {str(name): each for name, each in value.items()} if isinstance(value, Mapping) else {what: value}
        return {name: self._read(what, entry) for name, entry in entries.items()}

    def close(self) -> None:
        """Tell the model that it is done with."""
        if self.has("close"):
            called("close", self.model.close)

    def _call(self, capability: str, *arguments: Any) -> Any:
        self.subject.need_on(self.model, capability)
        self.tokens = max([self.tokens, *(each.size for each in arguments if isinstance(each, np.ndarray))])
        return called(capability, getattr(self.model, capability), *arguments)

    def _mapping(self, capability: str, *arguments: Any) -> dict[str, Array]:
        value = self._call(capability, *arguments)
        if not isinstance(value, Mapping):
            raise Finding(f"{capability} must return a mapping of names to arrays, got {type(value).__name__}")
        with reading(capability):
            entries = {str(name): entry for name, entry in value.items()}
        return {name: self._read(capability, entry) for name, entry in entries.items()}

    def _read(self, what: str, value: Any) -> Array:
        with reading(what):
            array, self.subject.dtypes[what] = to_numpy(value, self._most)
        return array

    @property
    def _most(self) -> int:
        """More values than any right array has: of a parameter, or of a stage for the tokens so far."""
        c = self.config
        widest = max(c.vocabulary_size, c.model_width, c.feed_forward_width, c.heads * c.max_positions)
        return 2**20 + 2 * max(parameter_count(c), self.tokens * widest)

    def _through(self, change: Callable[..., dict[str, Array]], theirs: Mapping[str, Array]) -> dict[str, Array]:
        try:
            return change(self.config, theirs)
        except LayoutError as reason:
            raise Finding(f"the declared layout does not fit what came: {reason}") from None

    def _checked(self, what: str, values: dict[str, Array]) -> dict[str, Array]:
        shapes = parameter_shapes(self.config)
        for name, shape in shapes.items():
            if name not in values:
                raise Finding(f"no {what} for {name}", f"{what}.{name}")
            if values[name].shape != shape:
                raise Finding(f"{what} of {name} has shape {values[name].shape}, expected {shape}", f"{what}.{name}")
        for name in values:
            if name not in shapes:
                raise Finding(f"{what} for {name!r}, which is not a parameter", f"{what}.{name}")
        return {name: values[name] for name in shapes}


def fresh(values: Array) -> Array:
    """A new writable array, so that nothing the implementation does to it reaches anybody else."""
    return np.array(values, dtype=np.int64, order="C")


def own(config: Config) -> Config:
    """A configuration that an implementation may do to what it likes; ours is the name of a case."""
    return replace(config)


def offers(owner: Any, capability: str) -> bool:
    """Whether there is such a method; one that cannot even be looked up is none."""
    return callable(looked_up(owner, capability))


def looked_up(owner: Any, name: str) -> Any:
    """An attribute; None where there is none, or where it cannot even be looked up."""
    try:
        return getattr(owner, name, None)
    except (Exception, SystemExit):
        return None


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn whatever goes wrong within, where a result is read, into a finding."""
    try:
        yield
    except ArrayError as reason:
        raise Finding(f"{what}: {words(reason)}") from None
    except (KeyboardInterrupt, Finding):
        raise
    except BaseException as reason:
        raise Finding(f"{what}: reading it raised {type(reason).__name__}: {words(reason)}") from None


def words(reason: BaseException) -> str:
    """What an exception says, as far as it can be said."""
    try:
        return str(reason)[:500]
    except (Exception, SystemExit):
        return "(its message cannot be read)"


def called(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call on valid input; raising anything is a finding. What it changes in NumPy is put back."""
    try:
        with watched(what), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an overflow shows in the values, where it is judged
            return function(*arguments)
    except NotImplementedError as reason:
        raise Finding(f"{what} is offered but raises NotImplementedError: {words(reason)}") from None
    except (KeyboardInterrupt, Finding, Absent):
        raise
    except BaseException as reason:  # SystemExit and the like are the implementation's, not ours
        text = f"{what} raised {type(reason).__name__} on valid input: {words(reason)}"
        frames = user_frames(reason)
        raise Finding(f"{text}\n{frames}" if frames else text, details={"raised": type(reason).__name__}) from None


def read_subject(implementation: Any, precision: Any = None, claims: Sequence[str] | None = None) -> Subject:
    """Read the declarations of an implementation; arguments override what it says itself. Raises `DeclarationError`.

    What says None, as a `__getattr__` may of everything, says nothing.
    """
    said = {name: looked_up(implementation, name) for name in DECLARED}
    declared = said["precision"] if precision is None else precision
    named = said["claims"] if claims is None else claims
    found = Subject(
        implementation=implementation,
        name=_name(type(implementation).__name__ if said["name"] is None else said["name"]),
        recipe=recipe("float64" if declared is None else declared),
        layout=layout({} if said["layout"] is None else said["layout"]),
        limits=_mapping_declared("limits", said["limits"]),
        claims=None if named is None else read_claims(named),
        emulates=_emulated(() if said["emulates"] is None else said["emulates"]),
    )
    if offers(implementation, "load") and not offers(implementation, "build"):
        found.checkpoint = read_checkpoint(implementation, found.layout)
    return found


def _name(given: Any) -> str:
    """What it calls itself, in as many letters as a line has room for."""
    return cut(given if isinstance(given, str) else shown(given), MOST)


def read_claims(named: Sequence[str] | str) -> tuple[str, ...]:
    """Contracts by name, from a sequence or a comma-separated word. Raises `DeclarationError`."""
    words = _words("claims", named)
    for word in words:
        if word not in CONTRACTS:
            raise DeclarationError(f"there is no contract {word!r}; allowed: {', '.join(CONTRACTS)}")
    return words


def _words(what: str, named: Any) -> tuple[str, ...]:
    """Words from a comma-separated one or a collection of them."""
    found: Any = named.split(",") if isinstance(named, str) else named
    with contextlib.suppress(TypeError):  # an array without an axis looks like a collection and is none
        found = list(found) if isinstance(found, Collection) else None
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise DeclarationError(f"{what} must be words, got {shown(named)}")
    return tuple(word.strip() for word in found if word.strip())


def _emulated(named: Any) -> tuple[str, ...]:
    """What the adapter emulates, so that its bits mean nothing."""
    words = _words("emulates", named)
    for word in words:
        if word not in EMULATIONS:
            raise DeclarationError(f"emulates has {word!r}; allowed: {', '.join(EMULATIONS)}")
    return words


def _mapping_declared(what: str, declared: Any) -> dict[str, Any]:
    if declared is not None and not isinstance(declared, Mapping):
        raise DeclarationError(f"{what} must be a mapping, got {shown(declared)}")
    return dict(declared or {})
