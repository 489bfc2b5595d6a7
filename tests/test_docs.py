"""The documentation is true: every block of Python and every command in it runs, and the site builds in strict mode."""

import dataclasses
import html
import inspect
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from inspect import Parameter
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedprox
from fedprox.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if page.exists()]
BLOCK = re.compile(r"^```(python|console)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
NOT_RUN = re.compile(r"<!-- not run: [^\n]+ -->\n+\Z")


def blocks(text: str) -> Iterator[tuple[str, str]]:
    """Yield language and content; a block after `<!-- not run: reason -->` is left out."""
    for found in BLOCK.finditer(text):
        if not NOT_RUN.search(text[: found.start()]):
            yield found[1], found[2]


def commands(block: str) -> list[str]:
    """Return the commands of a console block, which stand after a dollar; the rest is what they print."""
    joined = block.replace("\\\n", " ")
    return [line[2:] for line in joined.splitlines() if line.startswith("$ ")]


def run(command: str, folder: Path) -> None:
    if not re.search(r"[|<>&;$`]", command) and shlex.split(command)[0] == "fedprox":
        result = CliRunner().invoke(app, shlex.split(command)[1:])
        assert result.exit_code == 0, f"{command}\n{result.output}"
        return
    program = folder / "bin" / "fedprox"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m fedprox "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.usefixtures("runs_here")
def test_every_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for language, content in blocks(page.read_text(encoding="utf-8")):
        if language == "python":
            exec(compile(content, str(page), "exec"), namespace)
        else:
            for command in commands(content):
                run(command, tmp_path)


def test_a_block_that_is_wrong_is_found(tmp_path: Path) -> None:
    text = "```python\n1 / 0\n```\n<!-- not run: it needs a cluster -->\n```console\n$ false\n```\n"
    assert list(blocks(text)) == [("python", "1 / 0\n")]
    with pytest.raises(AssertionError, match="No such command"):
        run("fedprox nonsense", tmp_path)
    with pytest.raises(AssertionError):
        run("false && true", tmp_path)


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = [*(tmp_path / "site").glob("*.html"), *(tmp_path / "site" / "notebooks").glob("*.html")]
    assert len(pages) > 5
    for page in pages:
        assert not re.search(r'<(script|img|link)[^>]+(src|href)="https?://', page.read_text()), page.name
    notebook = (tmp_path / "site" / "notebooks" / "quickstart.html").read_text()
    assert "fedprox (mu=1) ends with the highest test accuracy" in notebook
    assert 'src="data:image/png' in notebook
    reference = (tmp_path / "site" / "reference.html").read_text()
    assert "Run a federated optimisation" in reference
    assert {name: missing for name, missing in fields_not_shown(reference).items() if missing} == {}
    assert wrongly_required(reference) == []
    assert list((tmp_path / "site").rglob("*.py")) == []


def test_every_page_can_be_reached() -> None:
    others = {page: "".join(each.read_text() for each in PAGES if each != page) for page in PAGES[1:]}
    menu = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page, text in others.items() if page.name not in menu + text] == []


def test_the_reference_has_every_public_name_and_every_section_of_a_config() -> None:
    names = re.findall(r"^::: (\S+)", (ROOT / "docs" / "reference.md").read_text(encoding="utf-8"), re.MULTILINE)
    shown = [pkgutil.resolve_name(name) for name in names]
    public = [getattr(fedprox, name) for name in fedprox.__all__ if name != "__version__"]
    public = [each for each in public if inspect.isclass(each) or inspect.isfunction(each)]
    sections = [field.annotation for field in fedprox.Config.model_fields.values() if inspect.isclass(field.annotation)]
    sections = [section for section in sections if hasattr(section, "model_fields")]
    readers = [getattr(fedprox.data, name) for name in fedprox.data.__all__ if name.startswith("read_")]
    theory = [getattr(fedprox.theory, name) for name in fedprox.theory.__all__]
    assert len(public) > 10 < len(sections)
    assert [each for each in (*public, *sections, *readers, *theory) if each not in shown] == []


def wrongly_required(page: str) -> list[str]:
    """Return the parameters that the reference calls required although they have a default, or are no parameters."""
    parts = re.split(r'id="(fedprox[\w.]*)" class="doc doc-heading"', page)
    wrong, seen = [], 0
    for name, part in zip(parts[1::2], parts[2::2], strict=True):
        rows = re.findall(r"<tr[^>]*>\s*<td>\s*<code>([^<]+)</code>((?:(?!</tr>).)*)</tr>", part, re.DOTALL)
        required = [row for row, rest in rows if "<em>required</em>" in rest]
        if required:
            known = inspect.signature(pkgutil.resolve_name(name)).parameters
            wrong += [
                f"{name}({row})" for row in required if row not in known or known[row].default is not Parameter.empty
            ]
            seen += len(required)
    assert seen > 10
    return wrong


def fields_not_shown(page: str) -> dict[str, list[str]]:
    """Return for each class of the reference which of its fields its part of the page does not name."""
    names = re.findall(r"^::: (\S+)", (ROOT / "docs" / "reference.md").read_text(encoding="utf-8"), re.MULTILINE)
    begins = sorted(page.index(f'id="{name}"') for name in names)
    found = {}
    for name in names:
        shown = pkgutil.resolve_name(name)
        if not inspect.isclass(shown):
            continue
        fields = [each.name for each in dataclasses.fields(shown)] if dataclasses.is_dataclass(shown) else []
        fields += getattr(shown, "model_fields", {})
        begin = page.index(f'id="{name}"')
        end = next((place for place in begins if place > begin), len(page))
        text = html.unescape(re.sub(r"<[^>]+>", " ", page[begin:end]))
        found[name] = [field for field in fields if not re.search(rf"\b{field}\b", text)]
    assert len(found) > 20
    return found
