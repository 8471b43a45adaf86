"""`tp-compile-pass demo`: the table, the JSON, and the exit status."""

import io
import json
from contextlib import nullcontext

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tp_compile_pass.cli import app
from tp_compile_pass.demo import show
from tp_compile_pass.demo.catalogue import CALL_SITES
from tp_compile_pass.demo.run import Outcome
from tp_compile_pass.report.record import Report


@pytest.fixture
def two_rows(monkeypatch):
    rows = {name: CALL_SITES[name] for name in ("isinstance_wait", "tolist")}
    monkeypatch.setattr(show, "CALL_SITES", rows)


def test_demo(two_rows, tmp_path):
    file = tmp_path / "demo.json"
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["demo", "--json", str(file)])
    assert result.exit_code == 0, result.output
    assert CALL_SITES["isinstance_wait"].code in result.output
    assert "ok of 2 rows: inductor 1, tp_inductor 1" in result.output
    assert "all_reduce" in result.output
    document = json.loads(file.read_text())
    assert document["rows"]["isinstance_wait"]["tp_inductor"] == {"verdict": "ok", "detail": ""}
    assert document["rows"]["tolist"]["tp_inductor"]["verdict"] == "graph break"
    assert document["report"]["graphs"][0]["collectives"][0]["kind"] == "all_reduce"


class NoRanks(nullcontext):
    """Stands for the pool where no row is run."""

    def __init__(self, *args, **kwargs):
        super().__init__(self)

    def run(self, check, timeout):
        return [Report()]


def test_demo_fails_where_tp_inductor_does(two_rows, monkeypatch):
    monkeypatch.setattr(show, "RankPool", NoRanks)
    outcomes = {"eager": Outcome("ok"), "inductor": Outcome("ok"), "tp_inductor": Outcome("wrong", "3 of 6 differ")}
    monkeypatch.setattr(show, "run_row", lambda ranks, name: outcomes)
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["demo"])
    assert result.exit_code == 1
    assert "tolist: tp_inductor: wrong (3 of 6 differ); inductor: ok" in result.output


@pytest.mark.parametrize(
    ("inductor", "ours", "fails"),
    [
        ("ok", "ok", False),
        ("graph break", "graph break", False),
        ("error", "ok", False),
        ("ok", "graph break", True),
        ("error", "error", True),
        ("wrong", "wrong", True),
    ],
)
def test_shortcomings(inductor, ours, fails):
    row = {"eager": Outcome("ok"), "inductor": Outcome(inductor), "tp_inductor": Outcome(ours)}
    assert bool(show.shortcomings({"row": row})) is fails
    assert not show.shortcomings({"row": {"eager": Outcome("error")}})


def test_a_folder_that_is_missing_is_said_before_anything_runs(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--json", str(tmp_path / "no" / "demo.json")])
    assert result.exit_code == 2
    assert "there is no folder" in result.output


def test_a_missing_compiler_is_said_once():
    result = CliRunner(env={"CXX": "no-such-compiler -O2"}).invoke(app, ["demo"])
    assert result.exit_code == 2
    assert "there is no no-such-compiler -O2" in result.output


def test_table_fits_a_narrow_terminal():
    outcomes = {"eager": Outcome("ok"), "inductor": Outcome("graph break"), "tp_inductor": Outcome("graph break")}
    console = Console(width=80, file=io.StringIO())
    console.print(show.table({name: outcomes for name in CALL_SITES}))
    rows = [line for line in console.file.getvalue().splitlines() if line.startswith("  ")]
    assert len(rows) == len(CALL_SITES)
    assert all(line.count("graph break") == 2 for line in rows)
