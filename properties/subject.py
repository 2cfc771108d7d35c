"""The implementation under test as the properties see it: canonical names, float64, plain findings.

Applies the declared layout and precision, reads whatever array type comes back, keeps at most two models alive, and
turns every way in which a call can go wrong into a finding.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decoderspec.properties.cases import Array, Case, draw_parameters, round_to
from decoderspec.properties.findings import Absent, Finding, user_frames
from decoderspec.spec.arrays import ArrayError, to_numpy
from decoderspec.spec.config import Config
from decoderspec.spec.layout import Layout, LayoutError, layout
from decoderspec.spec.parameters import parameter_shapes
from decoderspec.spec.precision import DeclarationError, Recipe, recipe
from decoderspec.spec.protocol import CAPABILITIES, CONTRACTS
from decoderspec.spec.stages import stage_names, stage_shape

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

    def model(self, case: Case, changed: Mapping[str, Array] | None = None) -> SubjectModel:
        """The model of a case, built once while it is among the last two; `changed` parameters make it a new one."""
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
        """Canonical parameters exactly as the implementation gets them: through its layout and its precision."""
        drawn = draw_parameters(case, self.recipe)
        return self.layout.invert(case.config, self.theirs(case.config, drawn))

    def theirs(self, config: Config, canonical: Mapping[str, Array]) -> dict[str, Array]:
        """Their tensors, rounded to the declared precision of the weights."""
        tensors = self.layout.apply(config, canonical)
        return {name: round_to(value, self.recipe.weights) for name, value in tensors.items()}

    def build(self, config: Config, canonical: Mapping[str, Array]) -> SubjectModel:
        """A fresh model."""
        self.builds += 1
        made = called("build", self.implementation.build, config, self.theirs(config, canonical))
        return SubjectModel(self, config, _with_logits("build", made))

    def initialize(self, config: Config, seed: int) -> SubjectModel:
        """A model that draws its own parameters."""
        self.need_on(self.implementation, "initialize")
        made = called("initialize", self.implementation.initialize, config, seed)
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

    def has(self, capability: str) -> bool:
        """Whether the model offers an optional method."""
        return offers(self.model, capability)

    def logits(self, tokens: Array) -> Array:
        """`[B, T, V]`; a wrong shape is a finding."""
        if not self.has("logits"):
            raise Finding(f"the model is a {type(self.model).__name__} without a method logits(tokens)", "logits")
        value = self._read("logits", called("logits", self.model.logits, fresh(tokens)))
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
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise Finding("role_gradients must return a pair (lookup, head)", "gradients")
        lookup, head = (self._read("role_gradients", value) for value in pair)
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
        entries = value if isinstance(value, Mapping) else {what: value}
        return {str(name): self._read(what, entry) for name, entry in entries.items()}

    def close(self) -> None:
        """Tell the model that it is done with."""
        if self.has("close"):
            called("close", self.model.close)

    def _call(self, capability: str, *arguments: Any) -> Any:
        self.subject.need_on(self.model, capability)
        return called(capability, getattr(self.model, capability), *arguments)

    def _mapping(self, capability: str, *arguments: Any) -> dict[str, Array]:
        value = self._call(capability, *arguments)
        if not isinstance(value, Mapping):
            raise Finding(f"{capability} must return a mapping of names to arrays, got {type(value).__name__}")
        return {str(name): self._read(capability, entry) for name, entry in value.items()}

    def _read(self, what: str, value: Any) -> Array:
        try:
            array, self.subject.dtypes[what] = to_numpy(value)
        except ArrayError as reason:
            raise Finding(f"{what}: {reason}") from None
        except KeyboardInterrupt:
            raise
        except BaseException as reason:
            raise Finding(f"{what}: reading it raised {type(reason).__name__}: {words(reason)}") from None
        return array

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


def offers(owner: Any, capability: str) -> bool:
    """Whether there is such a method; one that cannot even be looked up is none."""
    try:
        return callable(getattr(owner, capability, None))
    except Exception:
        return False


def words(reason: BaseException) -> str:
    """What an exception says, as far as it can be said."""
    try:
        return str(reason)[:500]
    except Exception:
        return "(its message cannot be read)"


def called(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call on valid input; raising anything is a finding. What it changes in NumPy is put back."""
    try:
        with np.errstate(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an overflow shows in the values, where it is judged
            return function(*arguments)
    except NotImplementedError as reason:
        raise Finding(f"{what} is offered but raises NotImplementedError: {reason}") from None
    except (KeyboardInterrupt, Finding, Absent):
        raise
    except BaseException as reason:  # SystemExit and the like are the implementation's, not ours
        text = f"{what} raised {type(reason).__name__} on valid input: {words(reason)}"
        frames = user_frames(reason)
        raise Finding(f"{text}\n{frames}" if frames else text, details={"raised": type(reason).__name__}) from None


def read_subject(implementation: Any, precision: Any = None, claims: Sequence[str] | None = None) -> Subject:
    """Read the declarations of an implementation; arguments override what it says itself. Raises `DeclarationError`."""
    declared = precision if precision is not None else getattr(implementation, "precision", "float64")
    named = claims if claims is not None else getattr(implementation, "claims", None)
    return Subject(
        implementation=implementation,
        name=str(getattr(implementation, "name", type(implementation).__name__)),
        recipe=recipe(declared),
        layout=layout(getattr(implementation, "layout", None) or {}),
        limits=_mapping_declared("limits", getattr(implementation, "limits", None)),
        claims=None if named is None else read_claims(named),
        emulates=_emulated(getattr(implementation, "emulates", ())),
    )


def read_claims(named: Sequence[str] | str) -> tuple[str, ...]:
    """Contracts by name, from a sequence or a comma-separated word. Raises `DeclarationError`."""
    words = _words("claims", named)
    for word in words:
        if word not in CONTRACTS:
            raise DeclarationError(f"there is no contract {word!r}; allowed: {', '.join(CONTRACTS)}")
    return words


def _words(what: str, named: Any) -> tuple[str, ...]:
    """Words from a comma-separated one or a collection of them."""
    found = named.split(",") if isinstance(named, str) else named
    if not isinstance(found, Collection) or not all(isinstance(word, str) for word in found):
        raise DeclarationError(f"{what} must be words, got {named!r}")
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
        raise DeclarationError(f"{what} must be a mapping, got {declared!r}")
    return dict(declared or {})
