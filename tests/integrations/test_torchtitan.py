"""What `integrations.torchtitan` does, on a stand-in for torchtitan (tests/frameworks has the real one)."""

import importlib
import os
import sys
import types

import pytest

from tp_compile_pass import TPOptionError

MODULE = "tp_compile_pass.integrations.torchtitan"


def refuse(model, backend):
    """What torchtitan does with backends for FlexAttention."""
    if backend != "inductor":
        raise ValueError(backend)
    return backend


class MetricsProcessor:
    class Config:
        pass


@pytest.fixture
def titan(monkeypatch):
    """torchtitan.distributed.compile."""
    names = ["torchtitan", "torchtitan.components", "torchtitan.components.metrics", "torchtitan.config"]
    modules = {
        name: types.ModuleType(name) for name in [*names, "torchtitan.distributed", "torchtitan.distributed.compile"]
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
        if "." in name:
            setattr(modules[name.rpartition(".")[0]], name.rpartition(".")[2], module)
    modules["torchtitan.components.metrics"].MetricsProcessor = MetricsProcessor
    modules["torchtitan.config"].override = lambda target, description: lambda factory: factory
    modules["torchtitan.distributed.compile"]._maybe_regional_inductor_backend = refuse
    yield modules["torchtitan.distributed.compile"]
    sys.modules.pop(MODULE, None)


def test_flex_attention_takes_the_name_and_no_other(titan):
    importlib.import_module(MODULE)
    assert titan._maybe_regional_inductor_backend(None, "tp_inductor") == "tp_inductor"
    assert titan._maybe_regional_inductor_backend(None, "inductor") == "inductor"
    with pytest.raises(ValueError, match="tvm"):
        titan._maybe_regional_inductor_backend(None, "tvm")


def test_options_reach_every_compilation(titan, monkeypatch):
    monkeypatch.setenv("TP_COMPILE_PASS_OVERLAP", "1")  # so that monkeypatch puts it back
    config = MetricsProcessor.Config()
    assert importlib.import_module(MODULE).tp_inductor(config, overlap=False) is config
    assert os.environ["TP_COMPILE_PASS_OVERLAP"] == "False"
    from tp_compile_pass.options import TPOptions

    assert TPOptions.split(None)[0].overlap is False


def test_a_wrong_option_is_an_error(titan):
    with pytest.raises(TPOptionError, match=r"did you mean tp\.overlap"):
        importlib.import_module(MODULE).tp_inductor(MetricsProcessor.Config(), overlp=False)


def test_another_torchtitan_is_an_error(titan):
    del titan._maybe_regional_inductor_backend
    with pytest.raises(ImportError, match=r"checked with torchtitan 0\.3\.0"):
        importlib.import_module(MODULE)
