"""Run the notebooks of the documentation and store their outputs: `python docs/run_notebooks.py [NAME ...]`."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parent / "notebooks"


def run_notebook(path: Path, folder: Path) -> nbformat.NotebookNode:
    """Return the notebook with the outputs of a fresh kernel that works in `folder`; a cell that fails raises."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times, which differ in every run
    return notebook


def main(names: list[str]) -> None:
    """Run the notebooks of these names, or all."""
    for path in [NOTEBOOKS / f"{name}.ipynb" for name in names] or sorted(NOTEBOOKS.glob("*.ipynb")):
        nbformat.write(run_notebook(path, NOTEBOOKS), path)


if __name__ == "__main__":
    main(sys.argv[1:])
