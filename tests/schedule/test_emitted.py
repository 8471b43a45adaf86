"""Reading the order out of generated code, and comparing it with the plan."""

from tp_compile_pass.schedule.emitted import communication, difference, emitted_steps, planned_steps

CODE = """
aten = torch.ops.aten
extern_kernels = …
cpp_fused_add_0 = async_compile.cpp_pybinding(['const float*'], r'''…''')

def call(args):
    extern_kernels.mm(arg0_1, arg1_1, out=buf0)
    # Topologically Sorted Source Nodes: [all_reduce], Original ATen: [_c10d_functional.all_reduce]
    torch.ops._c10d_functional.all_reduce_.default(buf0, 'sum', '0')
    extern_kernels.mm(arg0_1, arg2_1, out=buf1)
    cpp_fused_add_0(buf1)
    torch.ops._c10d_functional.wait_tensor.default(buf0)
    torch.ops._c10d_functional.wait_tensor.default(buf0)
    buf3 = torch.ops.aten.bernoulli.p(buf0, 0.5)
    triton_poi_fused_0.run(buf0, 128, stream=stream0)
"""
STEPS = ["kernels", "all_reduce_", "kernels", "wait", "wait", "kernels"]


def test_steps_of_generated_code():
    assert emitted_steps(CODE) == STEPS
    assert emitted_steps("AOTITorchError aoti_torch_cpu__c10d_functional_wait_tensor(") is None
    assert emitted_steps("") is None


def test_steps_of_a_plan():
    steps = ["kernels", "", "all_reduce_", "kernels", "kernels", "wait", "wait", "kernels"]
    assert planned_steps(steps, range(len(steps))) == STEPS
    assert planned_steps(steps, [2, 5, 6, 0, 1, 3]) == ["all_reduce_", "wait", "wait", "kernels"]


def test_differences():
    assert difference(STEPS, STEPS) == ""
    assert "step 2 is 'wait' and was planned as 'kernels'" in difference(STEPS, ["kernels", "all_reduce_", "wait"])
    assert "5 steps" in difference(STEPS, STEPS[:5])
    assert communication(STEPS) == ["all_reduce_", "wait", "wait"]
