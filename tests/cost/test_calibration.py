"""Calibrations on disk: what was stored comes back, and nothing else is believed."""

import os
import stat

import pytest

from tp_compile_pass.cost import calibration
from tp_compile_pass.cost.calibration import Calibration, Key

KEY = Key(host="node/1", device="cpu", model="x86_64", torch="2.13.0+cpu", threads=2, world=4, backend="gloo")
FIGURES = dict(flops=1e11, memory=1e10, launch=1e-6, latency=1e-4, bandwidth=1e9)
FOUND = Calibration(key=KEY, measured="today", **FIGURES)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_what_was_stored_is_loaded():
    assert calibration.load(KEY) is None
    path = calibration.store(FOUND)
    assert calibration.load(KEY) == FOUND
    assert [file.name for file in path.parent.iterdir()] == [path.name]  # no half-written file is left
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@pytest.mark.parametrize("change", [{"torch": "2.15.0"}, {"world": 8}, {"backend": "mpi"}, {"host": "other"}])
def test_it_holds_for_its_own_place_only(change):
    calibration.store(FOUND)
    other = KEY.model_copy(update=change)
    assert calibration.load(other) is None
    path = other.path
    path.write_text(FOUND.model_dump_json())  # renamed by hand
    assert calibration.load(other) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        FOUND.model_dump_json().replace("100000000000.0", "-1.0"),
        FOUND.model_dump_json().replace("100000000000.0", "NaN"),
        FOUND.model_dump_json().replace("100000000000.0", "1e999"),
        FOUND.model_dump_json().replace('"version":1', '"version":2'),
        FOUND.model_dump_json().replace('"measured"', '"extra":1,"measured"'),
        FOUND.model_dump_json() + " " * calibration.LIMIT,
    ],
)
def test_what_is_not_valid_is_ignored_with_a_warning(text):
    path = KEY.path
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.warns(UserWarning, match="is ignored"):
        assert calibration.load(KEY) is None


def test_the_name_stays_in_its_folder(cache):
    key = KEY.model_copy(update={"host": "../../etc/passwd", "model": "a b/c"})
    assert key.path.parent == cache / "tp_compile_pass" / "calibration"


def test_costs_name_their_source():
    costs = FOUND.costs()
    assert costs.machine.flops == 1e11 and costs.links["gloo"].bandwidth == 1e9
    assert "today" in costs.machine.source
