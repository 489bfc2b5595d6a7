"""Extras that are not installed: one sentence with the command, exit code 2, wherever they are needed."""

import importlib
import importlib.metadata
import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedprox
from fedprox.cli import app
from fedprox.core.errors import ConfigError
from fedprox.core.extras import EXTRAS, MissingExtraError

DECLARED = Path(__file__).parents[1] / "pyproject.toml"


def take_away(monkeypatch: pytest.MonkeyPatch, *modules: str) -> None:
    for loaded in [name for name in sys.modules if name.split(".")[0] in modules]:
        monkeypatch.delitem(sys.modules, loaded)
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)


def test_the_table_lists_every_extra_of_the_package_but_those_of_developers() -> None:
    import tomllib

    declared = tomllib.loads(DECLARED.read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS) == set(declared) - {"dev", "docs", "quick"}


def test_the_readme_lists_every_extra() -> None:
    text = (DECLARED.parent / "README.md").read_text()
    assert [name for name in EXTRAS if f"`{name}`" not in text] == []


@pytest.mark.parametrize("name", ["torch", "flax", "equinox", "scipy"])
def test_an_adapter_without_its_package(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch, name)
    monkeypatch.delitem(sys.modules, f"fedprox.adapters.{name}", raising=False)
    with pytest.raises(MissingExtraError, match=re.escape(f"pip install 'fedprox[{name}]'")) as caught:
        importlib.import_module(f"fedprox.adapters.{name}")
    assert caught.value.exit_code == 2
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, ImportError)


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (["run", "synthetic-iid", "-s", "rounds=1", "-s", "engine.name=ray"], "ray", "ray"),
        (["run", "synthetic-iid", "-s", "rounds=1", "--track", "mlflow"], "mlflow", "mlflow"),
        (["deploy", "keys", "keys"], "cryptography", "flower"),
        (
            ["run", "synthetic-iid", "-s", "solver.name=optax", "-s", "solver.options={name='adamw'}"],
            "optax",
            "optax",
        ),
    ],
)
def test_a_command_without_its_package(
    arguments: list[str], module: str, extra: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from fedprox.solvers import optax_steps

    optax_steps._named.cache_clear()
    take_away(monkeypatch, module)
    monkeypatch.delitem(sys.modules, "fedprox.training.trackers.mlflow_tracker", raising=False)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2, done.output
    sentence = f"needs {EXTRAS[extra].package}, which is not installed: pip install 'fedprox[{extra}]'"
    assert done.stderr.startswith("fedprox: ")
    assert done.stderr.strip().endswith(sentence)
    assert list(tmp_path.iterdir()) == []


def test_a_part_whose_module_lacks_its_package_gives_the_sentence_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    take_away(monkeypatch, "torch")
    monkeypatch.delitem(sys.modules, "fedprox.adapters.torch", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_torch_model.py").write_text("from fedprox.adapters.torch import from_torch\n")
    done = CliRunner().invoke(app, ["run", "synthetic-iid", "-s", "model.name=own_torch_model:model"])
    sentence = "`fedprox.adapters.torch` needs PyTorch, which is not installed: pip install 'fedprox[torch]'"
    assert (done.exit_code, done.stderr) == (2, f"fedprox: {sentence}\n")


def test_a_part_that_imports_a_missing_package_itself(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    take_away(monkeypatch, "torch")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_torch_nets.py").write_text("import torch.nn\n")
    with pytest.raises(MissingExtraError) as caught:
        fedprox.Config.from_dict({"model": {"name": "own_torch_nets:net"}})
    assert str(caught.value) == (
        "`model.name` = 'own_torch_nets:net' needs PyTorch, which is not installed: pip install 'fedprox[torch]'"
    )


def test_exports_need_no_extra_unless_they_are_parquet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fedprox.train({"rounds": 1, "solver": {"epochs": 1}}, out=tmp_path / "run")
    take_away(monkeypatch, "polars")
    run, out = str(tmp_path / "run"), str(tmp_path / "tables")
    assert CliRunner().invoke(app, ["export", run, "--out", out]).exit_code == 0
    assert {path.suffix for path in (tmp_path / "tables").iterdir()} == {".csv"}
    refused = CliRunner().invoke(app, ["export", run, "--out", out, "--format", "parquet"])
    sentence = "a Parquet export needs Polars, which is not installed: pip install 'fedprox[frames]'"
    assert (refused.exit_code, refused.stderr) == (2, f"fedprox: {sentence}\n")


def test_polars_frames_without_polars(monkeypatch: pytest.MonkeyPatch) -> None:
    take_away(monkeypatch, "polars")
    with pytest.raises(fedprox.FedProxError, match=r"pip install 'fedprox\[frames\]'"):
        fedprox.History([{"round": 0}]).to_polars()


def test_reports_and_pandas_frames_need_no_extra() -> None:
    core = [text.split(";")[0] for text in importlib.metadata.requires("fedprox") or [] if "extra ==" not in text]
    import tomllib

    declared = tomllib.loads(DECLARED.read_text())["project"]["dependencies"]
    assert {"pandas", "plotly"} <= {re.split(r"[<>=]", text)[0] for text in declared}
    assert core  # the package is installed with its metadata
