"""What the documentation says is true: its Python runs, its links lead somewhere, its tables match the code."""

import ast
import multiprocessing
import os
import re
import runpy
from pathlib import Path
from typing import NamedTuple, get_args

import pytest
from markdown_it import MarkdownIt

from tp_compile_pass.options import ENV_PREFIX, PREFIX, TPOptions

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
#: Seconds a code block may take, a first start of the C++ compiler included.
BLOCK_TIMEOUT = 300


class Block(NamedTuple):
    page: Path
    line: int
    runs: bool
    code: str

    def __str__(self):
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def _blocks():
    for page in PAGES:
        for token in MarkdownIt().parse(page.read_text()):
            words = token.info.split()
            if token.type == "fence" and words[:1] == ["python"]:
                yield Block(page, token.map[0] + 1, "no-run" not in words, token.content)


BLOCKS = list(_blocks())


@pytest.fixture(scope="module")
def forkserver():
    """Starts processes that have torch imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed"])
    return context


def _run(file, output):
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    runpy.run_path(file, run_name="__main__")


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.runs], ids=str)
def test_block_runs(block, forkserver, tmp_path):
    file, output = tmp_path / "block.py", tmp_path / "output"
    file.write_text("\n" * block.line + block.code)  # a traceback shows the page's line numbers
    process = forkserver.Process(target=_run, args=(str(file), str(output)))
    process.start()
    process.join(BLOCK_TIMEOUT)
    late = process.is_alive()
    process.kill()
    process.join()
    assert not late, f"{block} took more than {BLOCK_TIMEOUT} s:\n{output.read_text()}"
    assert process.exitcode == 0, f"{block} failed:\n{output.read_text()}"


@pytest.mark.parametrize("block", [b for b in BLOCKS if not b.runs], ids=str)
def test_block_that_is_not_run_is_python(block):
    ast.parse(block.code)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = [
        child.attrs["href"]
        for token in MarkdownIt().parse(page.read_text())
        for child in token.children or []
        if child.type == "link_open"
    ]
    missing = [
        link
        for link in links
        if not re.match(r"https?:|mailto:|#", link) and not (page.parent / link.split("#")[0]).exists()
    ]
    assert not missing


def test_every_page_is_reachable_from_the_guide():
    index = (ROOT / "docs" / "index.md").read_text()
    unlinked = [p.name for p in (ROOT / "docs").glob("*.md") if p.name != "index.md" and f"({p.name})" not in index]
    assert not unlinked


@pytest.mark.parametrize("name", TPOptions.model_fields)
def test_options_page_has_every_option(name):
    field = TPOptions.model_fields[name]
    values = get_args(field.annotation)
    kind = ", ".join(f"`{value}`" for value in values) if values else f"{field.annotation.__name__}"
    row = f"| `{PREFIX}{name}` | `{ENV_PREFIX}{name.upper()}` | {kind} | `{field.default}` | {field.description} |"
    assert row in (ROOT / "docs" / "options.md").read_text().splitlines()


def test_options_page_has_no_option_that_is_gone():
    page = (ROOT / "docs" / "options.md").read_text()
    assert set(re.findall(r"^\| `tp\.(\w+)`", page, re.M)) == set(TPOptions.model_fields)
