"""The notebooks of the documentation run in a fresh kernel, and the outputs that they show are the ones they have."""

import importlib.util
import re
import warnings
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

DOCS = Path(__file__).parents[1] / "docs"
NUMBER = re.compile(r"(?<![\w.])-?\d+\.?\d*(?:e-?\d+)?")


def load_runner():
    spec = importlib.util.spec_from_file_location("run_notebooks", DOCS / "run_notebooks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.run_notebook


def texts(cell):
    """Return what a cell has printed and returned, as text; pictures have none."""
    for output in cell.outputs:
        assert output.output_type != "error", output
        text = output.get("text") or output.get("data", {}).get("text/plain", "")
        if "image/png" not in output.get("data", {}):
            yield text


@pytest.mark.parametrize("name", ["quickstart", "own-pytorch-model", "own-method", "choosing-mu"])
def test_a_notebook_runs_and_shows_what_it_gives(name, tmp_path):
    if name == "own-pytorch-model":
        pytest.importorskip("torch")
    stored = nbformat.read(DOCS / "notebooks" / f"{name}.ipynb", as_version=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the kernel's client, not of a notebook
        fresh = load_runner()(DOCS / "notebooks" / f"{name}.ipynb", tmp_path)
    shown = 0
    for old, new in zip(stored.cells, fresh.cells, strict=True):
        if old.cell_type != "code":
            continue
        before, after = "\n".join(texts(old)), "\n".join(texts(new))
        assert NUMBER.sub("#", before).split() == NUMBER.sub("#", after).split()
        numbers = [[float(number) for number in NUMBER.findall(text)] for text in (before, after)]
        assert numbers[1] == pytest.approx(numbers[0], rel=0.02, abs=0.02)
        shown += len(old.outputs)
    assert shown >= 3
    assert any("text/html" in output.get("data", {}) for cell in stored.cells for output in cell.get("outputs", []))


def test_no_notebook_is_left_out():
    assert {path.stem for path in (DOCS / "notebooks").iterdir()} == {
        "choosing-mu",
        "own-method",
        "own-pytorch-model",
        "quickstart",
    }
