"""The shape of the house: who may import whom, and what is public."""

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import fedprox
from conftest import SLOW_FILES
from processor_time import read_seconds

# From the ground up: a layer imports only from layers that stand before it. CONTRIBUTING.md prints the same order.
LAYERS = [
    "core",
    "config",
    "models",
    "population",
    "data",
    "participation",
    "solvers",
    "methods",
    "attacks",
    "privacy",
    "measures",
    "engines",
    "runs",
    "report",
    "training",
    "experiments",
    "adapters",
    "deploy",
    "theory",
    "conformance",
    "paper",
    "doctor",
    "cli",
    "__main__",
]
SOURCE = Path(fedprox.__file__).parent


def parts_imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fedprox":
            inner = node.module.split(".")[1:]
            yield from [inner[0]] if inner else [name.name for name in node.names]


def test_every_layer_imports_only_from_layers_above_it():
    wrong = [
        f"{path.relative_to(SOURCE)} must not import from fedprox.{imported}, a layer below its own"
        for path in SOURCE.rglob("*.py")
        if (layer := path.relative_to(SOURCE).parts[0].removesuffix(".py")) != "__init__"
        for imported in parts_imported(path)
        if imported not in ("__version__", layer) and LAYERS.index(imported) > LAYERS.index(layer)
    ]
    assert wrong == []


def test_the_layout_shows_the_layers():
    listed = {path.name.removesuffix(".py") for path in SOURCE.iterdir() if path.suffix in ("", ".py")}
    assert listed - {"__init__", "__pycache__"} == set(LAYERS)
    text = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()
    places = [text.index(f"`{layer}`") for layer in LAYERS if layer != "__main__"]
    assert places == sorted(places), "CONTRIBUTING.md must print the layers in the order of LAYERS"


def modules():
    for info in pkgutil.walk_packages(fedprox.__path__, "fedprox."):
        if not info.name.endswith("__main__"):
            yield importlib.import_module(info.name)


def test_public_names_exist_are_sorted_and_documented():
    for module in modules():
        assert module.__doc__, module.__name__
        names = module.__all__
        assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name)), (
            module.__name__
        )
        for name in names:
            value = getattr(module, name)
            if callable(value) and getattr(value, "__module__", "").startswith("fedprox"):
                assert value.__doc__, f"{module.__name__}.{name}"


def test_the_public_interface():
    for name in fedprox.__all__:
        assert getattr(fedprox, name) is not None
    assert set(fedprox.__all__) <= set(dir(fedprox))
    with pytest.raises(AttributeError, match="nothing"):
        getattr(fedprox, "nothing")  # noqa: B009 - the point is the lookup


def test_every_slow_test_exists():
    folder = Path(__file__).parent
    gone = []
    for name in read_seconds():
        file, _, test = name.partition("::")
        if file.startswith("test_") and f"def {test.partition('[')[0]}(" not in (folder / file).read_text(
            encoding="utf-8"
        ):
            gone.append(name)
    assert gone == []
    assert [name for name in sorted(SLOW_FILES) if not (folder / name).exists()] == []
