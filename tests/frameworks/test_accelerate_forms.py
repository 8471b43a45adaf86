"""The other ways of naming the backend to accelerate, the real one: options, a script that knows nothing of us."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tp_compile_pass.report.record import reports

from .launching import ENVIRONMENT, RANKS, TORCHRUN

accelerate = pytest.importorskip("accelerate")
pytestmark = pytest.mark.frameworks

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
SCRIPT = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
from accelerate import Accelerator
from model import Model
accelerator = Accelerator(cpu=True)
model = accelerator.prepare_model(Model(), evaluation_mode=True)
import torch
model(torch.ones(2, 32))
import tp_compile_pass
print("graphs:", len(tp_compile_pass.reports()), *sys.argv[1:])
"""


@pytest.fixture(autouse=True)
def fresh():
    from accelerate.state import AcceleratorState, PartialState

    import tp_compile_pass.integrations.accelerate  # noqa: F401

    torch._dynamo.reset()
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    PartialState._reset_state()


def compiled(**options):
    from accelerate.utils import TorchDynamoPlugin

    plugin = TorchDynamoPlugin(backend="tp_inductor", options=options)
    accelerator = accelerate.Accelerator(cpu=True, dynamo_plugin=plugin)
    return accelerator.prepare_model(torch.nn.Sequential(torch.nn.Linear(2, 2)))


def test_options_reach_us():
    compiled(**{"tp.inner": "eager"})(torch.ones(1, 2))
    assert reports()[-1].graphs[-1].inner == "eager"


def test_a_wrong_option_is_an_error():
    with pytest.raises(Exception, match=r"did you mean tp\.strict"):
        compiled(**{"tp.strit": True})(torch.ones(1, 2))


def test_a_wrong_name_is_still_accelerates_error():
    with pytest.raises(ValueError, match="TP_INDUCTER"):
        accelerate.Accelerator(cpu=True, dynamo_backend="tp_inducter")


def test_a_script_that_knows_nothing_of_us(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [*TORCHRUN, "-m", "tp_compile_pass.integrations.accelerate", str(script), "argument"]
    ran = subprocess.run([sys.executable, *command], env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert ran.stdout.count("graphs: 1 argument") == RANKS, ran.stdout + ran.stderr
