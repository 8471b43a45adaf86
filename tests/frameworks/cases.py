"""The frameworks: how each is given the backend's name, by which of our examples that is run, and what it must show."""

from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from tp_compile_pass import compat


class Case(NamedTuple):
    """A function of an example, run on two ranks as `function("no")` and as `function("tp_inductor")`."""

    framework: str
    package: str
    part: str
    example: str
    how: str
    function: str = "run"
    #: Phases of which a graph with a collective in it must be in our report.
    phases: tuple[str, ...] = ("forward", "backward")
    compared: str = "losses of 3 steps, gradients"
    #: Whether collectives are in the compiled graphs.
    collectives: bool = True
    #: The oldest torch on which the framework itself can do this.
    torch: tuple[int, int] = (2, 13)
    #: What else the example imports.
    also: str = ""

    @property
    def name(self) -> str:
        return f"{self.framework} {self.part}".strip()

    @property
    def version(self) -> str:
        """The installed version; "" where it is not installed."""
        return _version(self.package)

    @property
    def missing(self) -> str:
        """Why it cannot be run here; "" where it can."""
        for package in filter(None, (self.package, self.also)):
            if not _version(package):
                return f"{package} is not installed"
        return f"needs torch {'.'.join(map(str, self.torch))}" if self.torch > compat.TORCH else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


LOSSES = "losses of 3 steps, trained weights"
GENERATED = "tokens and logits of generation"
TITAN = "--compile.enable --compile.backend tp_inductor"
TITAN_FLEX = f"{TITAN} --override.imports tp_compile_pass.integrations.torchtitan.tp_inductor"

CASES = (
    Case(
        "accelerate",
        "accelerate",
        "",
        "accelerate_tp",
        'import tp_compile_pass.integrations.accelerate; Accelerator(dynamo_backend="tp_inductor")',
    ),
    Case(
        "transformers",
        "transformers",
        "training",
        "transformers_tp",
        'model.compile(backend="tp_inductor")',
        "train",
        also="accelerate",
    ),
    Case(
        "transformers",
        "transformers",
        "generate",
        "transformers_tp",
        'generate(compile_config=CompileConfig(backend="tp_inductor", mode=None))',
        "generate",
        ("inference",),
        GENERATED,
        also="accelerate",
    ),
    Case(
        "transformers",
        "transformers",
        "Trainer (data-parallel)",
        "transformers_tp",
        'import tp_compile_pass.integrations.accelerate; TrainingArguments(torch_compile_backend="tp_inductor")',
        "trainer",
        compared=LOSSES,
        collectives=False,
        also="accelerate",
    ),
    Case(
        "Lightning Fabric",
        "lightning-fabric",
        "",
        "fabric_tp",
        'fabric.setup(torch.compile(model, backend="tp_inductor"))',
    ),
    Case("DeepSpeed", "deepspeed", "", "deepspeed_tp", 'engine.compile(backend="tp_inductor")'),
    Case("torchtitan", "torchtitan", "DTensor", "torchtitan_tp", TITAN, "train_dtensor"),
    Case("torchtitan", "torchtitan", "spmd_types", "torchtitan_tp", TITAN, "train_spmd_types", torch=(2, 15)),
    Case(
        "torchtitan",
        "torchtitan",
        "FlexAttention",
        "torchtitan_tp",
        TITAN_FLEX,
        "infer_flex",
        ("inference",),
        "logits (no gradients: FlexAttention has no backward on CPU)",
    ),
    Case("torchtune", "torchtune", "", "torchtune_tp", "TORCH_COMPILE_BACKEND=tp_inductor"),
    Case("NeMo Automodel", "nemo-automodel", "", "automodel_tp", "compile: {enabled: true, backend: tp_inductor}"),
    Case(
        "LitGPT",
        "litgpt",
        "",
        "litgpt_tp",
        "tp_compile_pass.set_default()",
        phases=("inference",),
        compared="tokens of generation",
    ),
)
