"""The catalogue of call sites, on the installed torch: every row comes out as `docs/call-sites.md` says."""

import re
from pathlib import Path

import pytest
import torch

from tp_compile_pass.compat import CHECKED
from tp_compile_pass.demo.catalogue import CALL_SITES
from tp_compile_pass.demo.catalogue.rows import LAZY
from tp_compile_pass.demo.run import BACKENDS, EAGER, VERDICTS, Outcome, run_row

PAGE = Path(__file__).parents[2] / "docs" / "call-sites.md"
#: Rows on lazy tensors that no version captures, for a reason that is not the wait's: `tolist` needs the numbers.
NOT_CAPTURED = {"tolist"}


def promised():
    """{version: {row: cell}} as the page's tables say."""
    versions, cells = [], {version: {} for version in CHECKED}
    for line in PAGE.read_text().splitlines():
        columns = [column.strip() for column in line.strip("|").split(" | ")]
        if line.startswith("| row "):
            versions = columns[2:]
        elif match := re.match(r"\| `(\w+)` \|", line):
            for version, cell in zip(versions, columns[2:], strict=True):
                cells[version][match[1]] = cell
    return cells


def cell(outcomes):
    """The page's cell for a row: what both backends make of it, or `inductor → tp_inductor` where they differ."""
    if outcomes[EAGER].verdict != "ok":
        return "eager fails"
    inductor, ours = (outcomes[backend].verdict for backend in BACKENDS)
    return ours if inductor == ours else f"{inductor} → {ours}"


PROMISED = promised()


@pytest.mark.matrix
@pytest.mark.parametrize("name", CALL_SITES)
def test_row(ranks2, name):
    version = torch.__version__.split("+")[0]
    if version not in CHECKED:
        pytest.skip(f"docs/call-sites.md has no column for torch {version}")
    outcomes = run_row(ranks2, name)
    assert cell(outcomes) == PROMISED[version][name], outcomes


@pytest.mark.parametrize("version", CHECKED)
def test_page_has_every_row(version):
    assert set(PROMISED[version]) == set(CALL_SITES)


def test_page_shows_the_code_of_each_row():
    page = PAGE.read_text()
    assert [name for name, row in CALL_SITES.items() if f"| `{name}` | `{row.code}` |" not in page] == []


@pytest.mark.parametrize("version", CHECKED)
def test_page_promises_no_row_that_is_worse_than_with_inductor(version):
    for name, text in PROMISED[version].items():
        if text != "eager fails":
            inductor, ours = (Outcome(verdict) for verdict in (text.split(" → ") * 2)[:2])
            assert ours.verdict in VERDICTS and inductor.verdict in VERDICTS, text
            assert not ours.worse_than(inductor), name


@pytest.mark.parametrize("version", CHECKED)
def test_page_promises_every_lazy_tensor_row(version):
    rows = {name: PROMISED[version][name] for name, row in CALL_SITES.items() if row.kind == LAZY}
    broken = {n for n, text in rows.items() if text.split(" → ")[-1] not in ("ok", "eager fails")}
    assert broken == NOT_CAPTURED
