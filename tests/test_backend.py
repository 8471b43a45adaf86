"""The backend as `torch.compile` sees it: Inductor with our steps around it, and nothing lost on the way."""

import importlib
import json
import os
import re
import subprocess
import sys
import textwrap
from importlib.metadata import entry_points

import pytest
import torch

import tp_compile_pass
from tp_compile_pass import backend, compat
from tp_compile_pass.failsafe import TPInternalWarning

pytestmark = pytest.mark.matrix


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    tp_compile_pass.report.record.clear_reports()
    yield
    torch._dynamo.reset()


def model(x):
    return (x.sin() * x).sum(0)


def step(compiled):
    """A training step: output and gradient."""
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    out = compiled(x)
    out.sum().backward()
    return out.detach(), x.grad


def only_report():
    (report,) = tp_compile_pass.reports()
    return report.graphs[0]


def test_registered_by_its_entry_point_alone():
    (entry,) = [e for e in entry_points(group="torch_dynamo_backends") if e.name == "tp_inductor"]
    assert entry.load() is tp_compile_pass.tp_inductor
    assert "tp_inductor" in torch._dynamo.list_backends()
    assert torch._dynamo.lookup_backend("tp_inductor") is tp_compile_pass.tp_inductor


@pytest.mark.parametrize("inner", ["inductor", "aot_eager", "eager"])
@pytest.mark.parametrize("dynamic", [None, False, True])
def test_every_inner_compiler_gives_eagers_numbers(inner, dynamic):
    compiled = torch.compile(model, backend="tp_inductor", dynamic=dynamic, options={"tp.inner": inner})
    with no_aot_cache():
        torch.testing.assert_close(step(compiled), step(model))
    assert only_report().inner == inner
    assert only_report().phases == ([] if inner == "eager" else ["forward", "backward"])


def test_without_anything_to_do_inductors_own_object_comes_back(monkeypatch):
    returned = []
    module = importlib.import_module("torch._inductor.compile_fx")
    original = module.compile_fx

    def compile_fx(*args, **kwargs):
        returned.append(original(*args, **kwargs))
        return returned[-1]

    monkeypatch.setattr(module, "compile_fx", compile_fx)
    handed_to_dynamo = []

    def spy(gm, inputs):
        handed_to_dynamo.append(tp_compile_pass.tp_inductor(gm, inputs))
        return handed_to_dynamo[-1]

    torch.compile(model, backend=spy)(torch.ones(2, 3))
    assert handed_to_dynamo[0] is returned[-1]


class ConfigKeeper:
    """A post-grad pass of the user's that keeps the Inductor config it runs under."""

    def __init__(self):
        self.seen = []

    def __call__(self, graph):
        from torch._inductor import config

        copy = getattr(config, "get_config_copy", None) or config.shallow_copy_dict
        seen = {k: v for k, v in copy().items() if not k.startswith("post_grad_custom")}
        # One of these has entries of ours, which only make the caches' keys ours: taken out, and the rest compared.
        # (Before torch 2.7 it is the list of passes of a reordering that is off, which nobody reads.)
        if "unsafe_marked_cacheable_functions" in seen:
            marked = seen["unsafe_marked_cacheable_functions"]
            seen["unsafe_marked_cacheable_functions"] = {k: v for k, v in marked.items() if v != "tp_compile_pass"}
        else:
            assert not config.reorder_for_compute_comm_overlap
            unread = seen["reorder_for_compute_comm_overlap_passes"]
            seen["reorder_for_compute_comm_overlap_passes"] = [p for p in unread if "tp_compile_pass" not in str(p)]
        self.seen.append(seen)


def no_aot_cache():
    return torch._functorch.config.patch(enable_autograd_cache=False)


SETTINGS = [
    {},
    {"mode": "default"},
    {"mode": "reduce-overhead"},
    {"mode": "max-autotune"},
    {"mode": "max-autotune-no-cudagraphs"},
    {"options": {"epilogue_fusion": False, "max_autotune": True}},
    {"options": {"triton.cudagraphs": True, "size_asserts": False}},
    {"options": {"shape-padding": False}},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_inductor_runs_under_the_config_it_would_have_had(settings):
    from torch._inductor import config

    seen = {}
    for name in ("inductor", "tp_inductor"):
        torch._dynamo.reset()
        keeper = ConfigKeeper()
        # torch.compile takes some options out of the dict, so each call gets its own
        kwargs = {k: dict(v) if isinstance(v, dict) else v for k, v in settings.items()}
        # Only the graph caches are off: the compiled kernels of equal source are reused, which keeps this quick.
        with config.patch(post_grad_custom_post_pass=keeper, fx_graph_cache=False), no_aot_cache():
            torch.testing.assert_close(step(torch.compile(model, backend=name, **kwargs)), step(model))
        assert len(keeper.seen) == 2, "one graph forward, one backward"
        seen[name] = keeper.seen
    assert seen["tp_inductor"] == seen["inductor"]


def test_options_of_ours_leave_inductors_config_alone():
    from torch._inductor import config

    keeper = ConfigKeeper()
    options = {"tp.strict": True, "epilogue_fusion": False}
    with config.patch(post_grad_custom_post_pass=keeper, force_disable_caches=True):
        torch.compile(model, backend="tp_inductor", options=options)(torch.ones(2, 3))
    assert keeper.seen[0]["epilogue_fusion"] is False
    assert not [key for key in keeper.seen[0] if key.startswith("tp.")]
    assert only_report().options["strict"] is True


def messages(**settings):
    """What each backend says to wrong settings, without the backend's name."""
    found = []
    for name in ("inductor", "tp_inductor"):
        with pytest.raises(Exception) as caught:
            torch.compile(model, backend=name, **settings)(torch.ones(2, 3))
        found.append(str(caught.value))
    return found


@pytest.mark.parametrize(
    "settings",
    [
        {"options": {"no_such_option": 1}},
        {"options": {"max_autotune": "yes"}},
        {"mode": "no-such-mode"},
        {"mode": "default", "options": {"max_autotune": True}},
    ],
    ids=str,
)
def test_wrong_settings_give_inductors_own_error(settings):
    inductor, ours = messages(**settings)
    assert inductor in ours


@pytest.mark.parametrize("inner", ["aot_eager", "eager"])
def test_a_setting_without_effect_is_named(inner):
    options = {"tp.inner": inner, "max_autotune": True}
    with pytest.warns(UserWarning, match=f"option 'max_autotune' has no effect with tp.inner='{inner}'"):
        torch.compile(model, backend="tp_inductor", options=options)(torch.ones(2, 3))
    assert "max_autotune" in only_report().warnings[0]


def test_a_precompile_cache_is_warned_about():
    from torch._dynamo import config

    if not hasattr(config, "caching_precompile"):
        pytest.skip("this torch has no precompile cache")
    captured = []
    torch.compile(model, backend=lambda gm, inputs: captured.append((gm, inputs)) or gm.forward)(torch.ones(2, 3))
    with config.patch(caching_precompile=True), pytest.warns(UserWarning, match="TORCH_CACHING_PRECOMPILE keys its"):
        tp_compile_pass.tp_inductor(*captured[0], options={"tp.inner": "eager"})
    assert "another backend" in only_report().warnings[0]


def test_guard_filter_fn():
    if compat.TORCH < (2, 7):
        pytest.skip("guard_filter_fn came with torch 2.7")
    options = {"guard_filter_fn": lambda guards: [True] * len(guards)}
    compiled = torch.compile(model, backend="tp_inductor", options=options)
    torch.testing.assert_close(step(compiled), step(model))


def test_a_failing_step_of_ours_leaves_plain_inductor_and_one_warning(monkeypatch):
    class Broken:
        name = "broken"

        def apply(self, gm, context):
            context.before_edit(gm)
            for node in gm.graph.nodes:
                if node.op == "output":
                    node.args = ((None,),)
            raise KeyError("on purpose")

    monkeypatch.setattr(backend, "CAPTURE_PASSES", (Broken(),))
    with pytest.warns(TPInternalWarning, match=r"pass broken failed \(KeyError: 'on purpose'\) and was left out"):
        torch.testing.assert_close(step(torch.compile(model, backend="tp_inductor")), step(model))
    assert len(only_report().warnings) == 1
    torch._dynamo.reset()
    with pytest.raises(Exception, match="TPInternalError: tp_inductor: pass broken failed"):
        torch.compile(model, backend="tp_inductor", options={"tp.strict": True})(torch.ones(2, 3))


def test_reset_reaches_inductor(monkeypatch):
    compiled = torch.compile(model, backend="tp_inductor", options={"triton.cudagraphs": True})
    compiled(torch.ones(2, 3))
    calls = []
    for wrapper in compat._wrappers:
        monkeypatch.setattr(wrapper, "reset", lambda: calls.append(1))
    torch._dynamo.reset()
    assert len(calls) == len(compat._wrappers) >= 1


def test_the_same_settings_share_one_wrapper():
    before = compat.inductor_wrapper(None, {"max_autotune": True}, None)
    assert compat.inductor_wrapper(None, {"max_autotune": True}, None) is before
    assert compat.inductor_wrapper(None, {"max_autotune": False}, None) is not before


def converted_under_swap_tensors(**backend):
    layer = torch.nn.Linear(3, 3)
    compiled = torch.compile(layer, **backend)
    compiled(torch.ones(2, 3))
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        compiled.to(torch.float64)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
    return compiled, layer


def test_model_to_under_swap_tensors():
    try:
        converted_under_swap_tensors(backend="eager")
    except RuntimeError as error:  # torch 2.5
        pytest.skip(f"this torch cannot do it with its own backends: {error}")
    compiled, layer = converted_under_swap_tensors(backend="tp_inductor", options={"tp.inner": "eager"})
    x = torch.ones(2, 3, dtype=torch.float64)
    torch.testing.assert_close(compiled(x), layer(x))


def test_torch_too_old_is_refused_by_name(monkeypatch):
    monkeypatch.setattr(compat, "TORCH", (2, 4))
    with pytest.raises(ImportError, match=r"needs torch >= 2\.5 and found .* \(checked on 2\.5\.1"):
        importlib.reload(backend)
    monkeypatch.undo()


def test_without_a_process_group_it_is_inductor():
    assert not torch.distributed.is_initialized()
    torch.testing.assert_close(step(torch.compile(model, backend="tp_inductor", fullgraph=True)), step(model))
    assert only_report().collectives == []


def run_script(text, cache, **env):
    """Runs a script in a fresh process with its own Inductor cache and returns the JSON on its last line."""
    variables = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1", **env}
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], env=variables, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])


CACHED = """
    import json, sys, tempfile, torch, torch.distributed as dist
    import torch.distributed._functional_collectives as funcol
    from torch._dynamo.utils import counters
    from tp_compile_pass import reports
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    w = torch.ones(3, 3, requires_grad=True)

    def fn(x):
        out = funcol.all_reduce(x @ w, "sum", dist.group.WORLD)
        if isinstance(out, funcol.AsyncCollectiveTensor):
            out = out.wait()
        return out.sin()

    out = torch.compile(fn, backend="BACKEND", fullgraph=True)(torch.ones(2, 3))
    if out.requires_grad:
        out.sum().backward()
    hits = {"fx": counters["inductor"]["fxgraph_cache_hit"], "aot": counters["aot_autograd"]["autograd_cache_hit"]}
    graph = [r.graphs[0] for r in reports()]
    print(json.dumps({**hits, "out": out.tolist(), "notes": [n for g in graph for n in g.notes],
                      "collectives": [c.kind for g in graph for c in g.collectives]}))
"""


def test_a_second_process_hits_inductors_caches_as_often_as_under_inductor(tmp_path):
    answers = {}
    for name in ("inductor", "tp_inductor"):
        script = CACHED.replace("BACKEND", name)
        cold = run_script(script, tmp_path / name)
        answers[name] = run_script(script, tmp_path / name)
        assert (cold["fx"], cold["aot"]) == (0, 0)
        assert answers[name]["out"] == cold["out"]
    ours, theirs = answers["tp_inductor"], answers["inductor"]
    assert (ours["fx"], ours["aot"]) == (theirs["fx"], theirs["aot"])
    assert ours["fx"] >= 1
    assert "all_reduce" in ours["collectives"], "also from the cache, the report lists what was captured"
    if ours["aot"]:
        assert "loaded from AOTAutograd's cache" in ours["notes"][0]
    changed = run_script(script, tmp_path / "tp_inductor", TP_COMPILE_PASS_INNER="aot_eager")
    assert (changed["fx"], changed["aot"]) == (0, 0), "an option that changes what is compiled misses the cache"


AOT_COMPILED = """
    import json, torch

    def fn(x):
        return (x.sin() * x).sum(0)

    x = torch.arange(6.0).reshape(2, 3)
    compiled = torch.compile(fn, backend="tp_inductor", fullgraph=True).aot_compile(((x,), {}))
    compiled.save_compiled_function("PATH")
    with open("PATH", "rb") as file:
        loaded = torch.compiler.load_compiled_function(file)
    print(json.dumps(bool(torch.equal(loaded(x), compiled(x)) and torch.allclose(loaded(x), fn(x)))))
"""


def test_aot_compile(tmp_path):
    if compat.TORCH < (2, 13):
        pytest.skip("aot_compile takes no custom backend before torch 2.13")
    script = AOT_COMPILED.replace("PATH", str(tmp_path / "artifact"))
    (tmp_path / "run.py").write_text(textwrap.dedent(script))
    assert (
        run_script(f"import runpy; runpy.run_path({str(tmp_path / 'run.py')!r}, run_name='__main__')", tmp_path) is True
    )


def test_a_mesh_on_a_missing_device_fails_as_in_eager(ranks2):
    for eager, inductor, ours in ranks2.run(missing_device):
        assert eager
        assert without_addresses(ours) == without_addresses(inductor)
        if compat.TORCH <= (2, 6) and "CUDA error" in ours:  # there the missing driver is worded otherwise when tracing
            assert "CUDA driver version is insufficient" in ours and __file__ in ours
        else:
            assert eager.splitlines()[0] in ours


def without_addresses(text):
    return re.sub("0x[0-9a-f]+", "0x", text.replace("tp_inductor", "inductor"))


def missing_device():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate

    def fn(x, mesh):
        return DTensor.from_local(x, mesh, [Replicate()], run_check=False).to_local() + 1

    def error(f):
        try:
            f(torch.ones(2), init_device_mesh("cuda", (2,)))
        except Exception as e:
            return str(e)
        return ""

    backends = ("inductor", "tp_inductor")
    return [error(fn), *(error(torch.compile(fn, backend=name)) for name in backends)]
