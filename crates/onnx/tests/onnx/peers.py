"""Checks exported models and compares their results with onnxruntime: peers.py FOLDER RTOL ATOL.

Each folder in FOLDER holds a model and data sets, laid out as the tests of the standard are.
"""

import pathlib
import sys

import numpy
import onnx
import onnxruntime

rtol, atol = map(float, sys.argv[2:])
onnxruntime.set_default_logger_severity(3)
wrong, lacking = [], []


def tensors(folder, prefix):
    count = len(list(folder.glob(f"{prefix}_*.pb")))
    for i in range(count):
        yield onnx.numpy_helper.to_array(onnx.load_tensor(folder / f"{prefix}_{i}.pb"))


def check(case):
    path = str(case / "model.onnx")
    onnx.checker.check_model(path, full_check=True)
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as e:
        lacking.append(f"{case.name}: {e}")
        return
    names = [i.name for i in session.get_inputs()]
    for data in sorted(case.glob("test_data_set_*")):
        outputs = session.run(None, dict(zip(names, tensors(data, "input"))))
        for i, (got, want) in enumerate(zip(outputs, tensors(data, "output"), strict=True)):
            assert (got.dtype, got.shape) == (want.dtype, want.shape), (
                f"output {i} of {data.name}: {got.dtype}{got.shape}, not {want.dtype}{want.shape}"
            )
            numpy.testing.assert_allclose(got, want, rtol, atol, err_msg=f"output {i} of {data.name}")


cases = sorted(p for p in pathlib.Path(sys.argv[1]).iterdir() if p.is_dir())
for case in cases:
    try:
        check(case)
    except Exception as e:
        wrong.append(f"{case.name}: {str(e)[:2000]}")
print("\n".join(wrong + [f"no kernel: {l[:300]}" for l in lacking]))
print(f"{len(cases)} models, {len(wrong)} wrong, {len(lacking)} without a kernel in onnxruntime")
sys.exit(1 if wrong or 2 * len(lacking) > len(cases) else 0)
