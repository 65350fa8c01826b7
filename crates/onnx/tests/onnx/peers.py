"""Checks exported models and compares their results with onnxruntime: peers.py FOLDER RTOL ATOL.

Each folder in FOLDER holds a model and data sets, laid out as the tests of the standard are.
"""

import ctypes
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
    return [onnx.load_tensor(folder / f"{prefix}_{i}.pb") for i in range(count)]


def given(tensor):
    """A value of onnxruntime's, whose NumPy has no bf16 and no floats of 8 bits."""
    array = onnx.numpy_helper.to_array(tensor)
    if array.dtype.isbuiltin == 1:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    bits = array.view(f"u{array.itemsize}")
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, tensor.data_type)


def array(value):
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.element_type())
    if dtype.isbuiltin == 1:
        return value.numpy()
    shape = value.shape()
    size = dtype.itemsize * int(numpy.prod(shape))
    return numpy.frombuffer(ctypes.string_at(value.data_ptr(), size), dtype).reshape(shape)


def check(case):
    path = str(case / "model.onnx")
    onnx.checker.check_model(path, full_check=True)
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as e:
        lacking.append(f"{case.name}: {e}")
        return
    names = [i.name for i in onnx.load(path, load_external_data=False).graph.input]
    for data in sorted(case.glob("test_data_set_*")):
        outputs = session.run_with_ort_values(None, dict(zip(names, map(given, tensors(data, "input")))))
        for i, (got, want) in enumerate(zip(outputs, tensors(data, "output"), strict=True)):
            got, want = array(got), onnx.numpy_helper.to_array(want)
            assert (got.dtype, got.shape) == (want.dtype, want.shape), (
                f"output {i} of {data.name}: {got.dtype}{got.shape}, not {want.dtype}{want.shape}"
            )
            if want.dtype.isbuiltin != 1:
                got, want = got.astype("f4"), want.astype("f4")
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
