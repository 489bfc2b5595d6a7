"""The shape of the house: who may import whom, and what is public."""

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import fedprox

# From the ground up: a part imports only from parts that stand before it.
ORDER = [
    "errors",
    "config",
    "recipes",
    "randomness",
    "runtime",
    "workers",
    "trees",
    "fixed_point",
    "models",
    "population",
    "population_folder",
    "population_writer",
    "partition",
    "data",
    "sampling",
    "budget",
    "systems",
    "subproblem",
    "resident",
    "inexactness",
    "solvers",
    "methods",
    "traffic",
    "clock",
    "solver_choice",
    "mu",
    "privacy",
    "engines",
    "student",
    "measured_sample",
    "sample_error",
    "walk",
    "data_pass",
    "measures",
    "stopping",
    "history",
    "axis",
    "files",
    "run_folder",
    "words",
    "notebook",
    "result",
    "plan",
    "rows",
    "initial",
    "state",
    "journal",
    "training",
    "calibrate",
    "adapters",
    "deploy",
    "saved",
    "grouping",
    "evaluate",
    "export",
    "trackers",
    "signals",
    "scheduler",
    "worker",
    "compare",
    "suite",
    "sweep",
    "tune",
    "plot",
    "heterogeneity",
    "display",
    "watch",
    "report",
    "doctor",
    "theory",
    "conformance",
    "paper",
    "cli",
    "__main__",
]
SOURCE = Path(fedprox.__file__).parent


def parts_imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fedprox":
            inner = node.module.split(".")[1:]
            yield from [inner[0]] if inner else [name.name for name in node.names]


def test_every_part_imports_only_from_parts_above_it():
    wrong = [
        f"{path.relative_to(SOURCE)} imports {imported}"
        for path in SOURCE.rglob("*.py")
        if (part := path.relative_to(SOURCE).parts[0].removesuffix(".py")) != "__init__"
        for imported in parts_imported(path)
        if imported not in ("__version__", part) and ORDER.index(imported) > ORDER.index(part)
    ]
    assert wrong == []


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
