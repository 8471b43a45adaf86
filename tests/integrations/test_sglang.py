"""SGLang's plugin does nothing unless it is asked for (SGLang itself is not run: it needs a GPU)."""

import importlib
import re
from pathlib import Path

import pytest
import torch

from tp_compile_pass.integrations.sglang import select


@pytest.fixture(autouse=True)
def default_backend():
    yield
    torch.compiler.set_default_backend(None)


@pytest.mark.parametrize(
    ("plugins", "backend"),
    [(None, "inductor"), ("", "inductor"), ("others", "inductor"), ("others, tp_inductor", "tp_inductor")],
)
def test_it_acts_only_by_name(monkeypatch, plugins, backend):
    if plugins is None:
        monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    else:
        monkeypatch.setenv("SGLANG_PLUGINS", plugins)
    select()
    assert torch.compiler.get_default_backend() == backend


def test_it_is_registered_under_that_name():
    text = (Path(__file__).parent.parent.parent / "pyproject.toml").read_text()
    module, function = re.search(r'"sglang\.srt\.plugins"\]\ntp_inductor = "([\w.]+):(\w+)"', text).groups()
    assert getattr(importlib.import_module(module), function) is select
