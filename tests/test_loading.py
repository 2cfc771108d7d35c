"""Whatever form an implementation has is found by its name, and what cannot be loaded says why and what to do."""

import textwrap

import pytest

from decoderspec.properties.loading import FunctionImplementation, LoadError, attribute, implementation, load
from decoderspec.properties.operation import load_operation
from decoderspec.properties.subject import read_subject
from decoderspec.spec.config import Config
from decoderspec.spec.precision import recipe

SOURCE = """
import functools

class Adapter:
    name = "an adapter"
    def build(self, config, parameters):
        return self

class Costly:
    def __init__(self, path):
        pass
    def build(self, config, parameters):
        return self

class Nothing:
    pass

class Callable:
    precision = "float32"
    def __call__(self, config, parameters, tokens):
        return config, parameters, tokens

class Method:
    def logits(self, config, parameters, tokens):
        return config, parameters, tokens

class Namespace:
    inner = Adapter()

def logits(config, parameters, tokens):
    return config, parameters, tokens

logits.precision = "float32"
logits.claims = ["forward"]

def with_options(config, parameters, tokens, chunk=4, *, device="cpu"):
    return config, parameters, tokens

def factory():
    return Adapter()

def factory_with_options(device="cpu"):
    return Adapter()

def factory_of_a_function():
    return logits

def factory_of_nothing():
    return Nothing()

def failing():
    raise OSError("weights.bin is missing")

def leaving():
    raise SystemExit(0)

instance = Adapter()
callable_instance = Callable()
bound = Method().logits
partial = functools.partial(lambda scale, config, parameters, tokens: (config, parameters, tokens), 1.0)
number = 3

def rms_norm(x, gain, epsilon):
    return x

def rms_norm_backward(upstream, x, gain, epsilon):
    return upstream
"""
CONFIG = Config(5, 4, 2, 3, 1, 4)


@pytest.fixture
def place(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(SOURCE, encoding="utf-8")
    return str(path)


def written(tmp_path, source, name="mine.py"):
    path = tmp_path / name
    path.write_text(textwrap.dedent(source), encoding="utf-8")
    return str(path)


ADAPTERS = ["Adapter", "instance", "factory", "factory_with_options", "Namespace.inner"]
FUNCTIONS = ["logits", "with_options", "callable_instance", "bound", "partial", "factory_of_a_function"]


@pytest.mark.parametrize("name", ADAPTERS)
def test_a_class_an_instance_and_a_factory_are_adapters(place, name):
    found = load(f"{place}:{name}")
    assert found.name == "an adapter"
    assert found.build(CONFIG, {}) is found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_callable_of_three_parameters_is_a_logits_function(place, name):
    found = load(f"{place}:{name}")
    assert isinstance(found, FunctionImplementation)
    assert found.build(CONFIG, {"a": 1}).logits([[0]]) == (CONFIG, {"a": 1}, [[0]])


def test_attributes_of_a_function_are_its_declarations(place):
    subject = read_subject(load(f"{place}:logits"))
    assert subject.name == "logits"
    assert subject.recipe.declared == "float32"
    assert subject.claims == ("forward",)
    assert read_subject(load(f"{place}:callable_instance")).recipe.declared == "float32"
    assert read_subject(load(f"{place}:with_options")).recipe.declared == "float64"


def test_a_module_is_found_by_its_dotted_name():
    assert load("decoderspec.reference:Reference").name == "reference"


def test_a_module_beside_the_user_is_found(tmp_path, monkeypatch):
    written(tmp_path, SOURCE, "beside_the_user.py")
    monkeypatch.chdir(tmp_path)
    assert load("beside_the_user:Adapter").name == "an adapter"


def test_a_file_may_import_its_neighbours(tmp_path):
    written(tmp_path, "WIDTH = 7\n", "a_neighbour_of_mine.py")
    place = written(tmp_path, "import a_neighbour_of_mine\n\ndef width():\n    return a_neighbour_of_mine.WIDTH\n")
    assert attribute(f"{place}:width")() == 7


def test_a_relative_path_is_a_path(tmp_path, monkeypatch):
    written(tmp_path, SOURCE)
    monkeypatch.chdir(tmp_path)
    assert load("mine.py:Adapter").name == "an adapter"
    assert load("./mine.py:Adapter").name == "an adapter"


def test_files_of_the_same_name_are_different_implementations(tmp_path):
    found = []
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
        place = written(tmp_path / folder, f"class A:\n    name = '{folder}'\n    build = None\n")
        found.append(load(f"{place}:A"))
    assert [each.name for each in found] == ["ours", "theirs"]


@pytest.mark.parametrize("name", ["", "mine.py", "mine.py:", ":Adapter", "decoderspec"])
def test_a_name_without_both_parts_says_what_a_name_is(name):
    with pytest.raises(LoadError, match=r"package\.module:attribute"):
        load(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Missing", "has no 'Missing'; it has: .*Adapter"),
        ("Namespace.missing", "has no"),
        ("number", "int, which has no build"),
        ("Nothing", "gave Nothing, which has no build"),
        ("factory_of_nothing", "gave Nothing, which has no build"),
        ("failing", "OSError: weights.bin is missing"),
        ("leaving", "SystemExit"),
        ("Costly", "TypeError: .*path"),
    ],
)
def test_what_is_no_implementation_says_why(place, name, message):
    with pytest.raises(LoadError, match=message):
        load(f"{place}:{name}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def logits(:", "SyntaxError"),
        ("import a_module_that_is_not_there", "ModuleNotFoundError"),
        ("raise ValueError('at import')", "ValueError: at import"),
        ("import sys\nsys.exit(0)", "SystemExit"),
        ("raise GeneratorExit", "GeneratorExit"),
    ],
)
def test_a_file_that_cannot_be_run_says_why(tmp_path, source, message):
    with pytest.raises(LoadError, match=message):
        load(f"{written(tmp_path, source)}:Adapter")


def test_a_module_that_leaves_at_import_says_so(tmp_path, monkeypatch):
    written(tmp_path, "raise SystemExit(0)", "leaves_at_import.py")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LoadError, match="SystemExit"):
        load("leaves_at_import:Adapter")


@pytest.mark.parametrize("name", ["missing.py:Adapter", "no_such_package_here.inner:Adapter"])
def test_what_is_not_there_is_named(name):
    with pytest.raises(LoadError, match=name.partition(":")[0].partition(".inner")[0]):
        load(name)


def test_an_interrupt_is_the_users():
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        implementation(interrupted, "interrupted")


# --- Operations ---


def test_an_operation_brings_the_derivative_beside_it(place):
    found = load_operation(f"{place}:rms_norm", "rms_norm", recipe("float64"))
    assert found.forward(1, 2, 3) == 1
    assert found.backward is not None
    assert found.backward("upstream", 1, 2, 3) == "upstream"


def test_an_operation_without_a_derivative_has_none(place):
    assert load_operation(f"{place}:logits", "attend", recipe("float64")).backward is None


@pytest.mark.parametrize(("name", "operation", "message"), [
    ("rms_norm", "layer_norm", "no operation 'layer_norm'; allowed: .*rms_norm"),
    ("number", "rms_norm", "int, not a function"),
    ("missing", "rms_norm", "has no 'missing'"),
])  # fmt: skip
def test_what_is_no_operation_says_why(place, name, operation, message):
    with pytest.raises(LoadError, match=message):
        load_operation(f"{place}:{name}", operation, recipe("float64"))
