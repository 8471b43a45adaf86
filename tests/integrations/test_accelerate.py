"""What `integrations.accelerate` does to accelerate's enum, on a stand-in (tests/frameworks has the real one)."""

import enum
import importlib
import os
import pickle
import subprocess
import sys
import types

import pytest

MODULE = "tp_compile_pass.integrations.accelerate"


class Meta(enum.EnumMeta):
    """`in` as accelerate's enums have it."""

    def __contains__(cls, item):
        try:
            cls(item)
        except ValueError:
            return False
        return True


@pytest.fixture
def backends(monkeypatch):
    """accelerate's enum of backends, with the integration imported."""

    class DynamoBackend(str, enum.Enum, metaclass=Meta):
        NO = "NO"
        INDUCTOR = "INDUCTOR"

        def __str__(self):
            return self.value

    DynamoBackend.__qualname__ = "DynamoBackend"
    monkeypatch.setattr(sys.modules[__name__], "DynamoBackend", DynamoBackend, raising=False)
    utils = types.ModuleType("accelerate.utils")
    utils.DynamoBackend = DynamoBackend
    monkeypatch.setitem(sys.modules, "accelerate", types.ModuleType("accelerate"))
    monkeypatch.setitem(sys.modules, "accelerate.utils", utils)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    importlib.import_module(MODULE)
    yield DynamoBackend
    sys.modules.pop(MODULE, None)


def test_the_name_becomes_a_backend(backends):
    member = backends("tp_inductor".upper())
    assert isinstance(member, backends) and member is backends("TP_INDUCTOR")
    assert member.value.lower() == str(member).lower() == "tp_inductor"
    assert member != backends.NO and "TP_INDUCTOR" in backends
    assert pickle.loads(pickle.dumps(member)) is member


def test_other_names_are_what_they_were(backends):
    assert backends("INDUCTOR") is backends.INDUCTOR
    assert [str(member) for member in backends] == ["NO", "INDUCTOR"]
    with pytest.raises(ValueError, match="NVFUSER"):
        backends("NVFUSER")


def test_importing_twice_changes_nothing(backends):
    member = backends("TP_INDUCTOR")
    importlib.reload(sys.modules[MODULE])
    assert backends("TP_INDUCTOR") is member


def test_a_script_runs_under_it(backends, monkeypatch, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import os, sys, beside\nbeside.seen = [*sys.argv, os.environ['ACCELERATE_DYNAMO_BACKEND']]\n")
    (tmp_path / "beside.py").touch()
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "NO")
    monkeypatch.setattr(sys, "argv", ["accelerate.py", str(script), "--lr", "1"])
    monkeypatch.setattr(sys, "path", ["elsewhere", *sys.path])
    sys.modules[MODULE].main()
    assert sys.modules.pop("beside").seen == [str(script), "--lr", "1", "TP_INDUCTOR"]
    assert backends(os.environ["ACCELERATE_DYNAMO_BACKEND"])


def test_without_a_script_it_says_how(backends, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["accelerate.py"])
    with pytest.raises(SystemExit, match="usage"):
        sys.modules[MODULE].main()


def test_the_package_imports_neither_its_integrations_nor_a_framework():
    code = (
        "import sys, tp_compile_pass; print([name for name in sys.modules if name.startswith("
        "('tp_compile_pass.integrations', 'tp_compile_pass.doctor', 'accelerate', 'transformers', 'torchtitan'))])"
    )
    ran = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
