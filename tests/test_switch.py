"""`set_default` and `patch_inductor`: what they reach, what they leave alone, and that they can be undone."""

import pytest
import torch

import tp_compile_pass
from tp_compile_pass import compat, compat_switch, switch

pytestmark = pytest.mark.matrix

EAGER = {"tp.inner": "eager"}  # an option of ours: where it is accepted, tp_inductor it is


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    tp_compile_pass.report.record.clear_reports()
    yield
    torch._dynamo.reset()
    assert switch._open == 0


class Model(torch.nn.Module):
    def forward(self, x):
        return x.sin() + 1


def compiled_by_us(compiled):
    """Calls a compiled Model and says how many graphs of it we compiled."""
    torch._dynamo.reset()  # the models share their code, and so Dynamo's cache
    before = len(tp_compile_pass.reports())
    x = torch.arange(3.0)
    torch.testing.assert_close(compiled(x), x.sin() + 1)
    return len(tp_compile_pass.reports()) - before


def compile_in_place(options=None):
    model = Model()
    model.compile(options=options)
    return model


WAYS = {
    "unnamed": lambda: torch.compile(Model(), options=EAGER),
    "named": lambda: torch.compile(Model(), backend="inductor", options=EAGER),
    "decorator": lambda: torch.compile(backend="inductor", options=EAGER)(Model()),
    "in place": lambda: compile_in_place(EAGER),
}


@pytest.mark.parametrize("way", WAYS)
def test_patch_reaches_every_way_of_naming_inductor(way):
    with tp_compile_pass.patch_inductor():
        assert compiled_by_us(WAYS[way]()) == 1


def test_patch_leaves_other_backends_and_earlier_compilations_alone():
    earlier = torch.compile(Model(), backend="inductor")
    with tp_compile_pass.patch_inductor():
        assert compiled_by_us(torch.compile(Model(), backend="eager")) == 0
        assert compiled_by_us(earlier) == 0
        # Inductor itself is still what compiles for us, and what torch takes for Inductor's objects.
        assert compiled_by_us(torch.compile(Model())) == 1
        assert isinstance(compat.inductor_wrapper(None, {}, None), torch._TorchCompileInductorWrapper)


def test_patch_keeps_modes_and_options_and_their_errors():
    with tp_compile_pass.patch_inductor():
        assert compiled_by_us(torch.compile(Model(), mode="max-autotune-no-cudagraphs")) == 1
        with pytest.raises(Exception, match="no_such_option"):
            torch.compile(Model(), options={"no_such_option": 1})(torch.ones(2))
        with pytest.raises(Exception, match=r"did you mean tp\.strict"):
            torch.compile(Model(), options={"tp.strit": True})(torch.ones(2))


def test_patch_is_undone():
    original = torch._TorchCompileInductorWrapper
    outer = tp_compile_pass.patch_inductor()
    with tp_compile_pass.patch_inductor() as inner:
        assert torch._TorchCompileInductorWrapper is not original
    inner.undo()  # a second time
    assert torch._TorchCompileInductorWrapper is not original  # the outer one still holds
    outer.undo()
    assert torch._TorchCompileInductorWrapper is original
    with pytest.raises(ValueError), tp_compile_pass.patch_inductor():
        raise ValueError
    assert torch._TorchCompileInductorWrapper is original
    assert compiled_by_us(torch.compile(Model(), backend="inductor")) == 0


def other_class(mode, options):
    """An Inductor whose wrapper was changed."""


@pytest.mark.parametrize("how", ["newer", "changed", "gone"])
def test_patch_refuses_a_torch_that_it_does_not_know(monkeypatch, how):
    if how == "newer":
        monkeypatch.setattr(compat, "TORCH", (99, 0))
    elif how == "changed":
        monkeypatch.setattr(torch, "_TorchCompileInductorWrapper", type("Other", (), {"__init__": other_class}))
    else:
        monkeypatch.delattr(torch, "_TorchCompileInductorWrapper")
    before = getattr(torch, "_TorchCompileInductorWrapper", None)
    with pytest.raises(RuntimeError, match=r'changes nothing: .*backend="tp_inductor"'):
        tp_compile_pass.patch_inductor()
    assert getattr(torch, "_TorchCompileInductorWrapper", None) is before


def test_this_torch_can_be_patched():
    assert compat_switch.refusal() == ""


@pytest.mark.parametrize("select", [tp_compile_pass.set_default, tp_compile_pass.patch_inductor])
def test_a_package_that_is_not_installed_is_an_error(monkeypatch, select):
    monkeypatch.setattr(torch.compiler, "list_backends", lambda: ["inductor"])
    with pytest.raises(RuntimeError, match="not installed"):
        select()


HAS_DEFAULT = hasattr(torch.compiler, "set_default_backend")


@pytest.mark.skipif(not HAS_DEFAULT, reason="torch has no default backend before 2.13")
def test_default():
    tp_compile_pass.set_default()
    try:
        assert compiled_by_us(torch.compile(Model(), options=EAGER)) == 1
        assert compiled_by_us(compile_in_place(EAGER)) == 1
        assert compiled_by_us(torch.compile(Model(), backend="inductor")) == 0
    finally:
        torch.compiler.set_default_backend(None)
    assert compiled_by_us(torch.compile(Model())) == 0


@pytest.mark.skipif(HAS_DEFAULT, reason="torch has a default backend from 2.13 on")
def test_default_on_an_older_torch_says_what_to_do():
    with pytest.raises(RuntimeError, match=r"needs torch 2\.13.*patch_inductor"):
        tp_compile_pass.set_default()


def test_importing_the_package_changes_nothing():
    assert compiled_by_us(torch.compile(Model())) == 0
