"""Writes the standard's node tests of onnx 1.23.2 that release 1.19.1 lacks or has other models of:

    newer.py FOLDER OLDER    (with onnx 1.23.2; OLDER is tests/goldens/onnx.tar.xz, unpacked)

`tests/goldens/onnx_newer.tar.xz` holds what it wrote.
"""

import pathlib
import sys
import warnings

import numpy
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases


def message(value, kind):
    match kind.WhichOneof("value"):
        case "sequence_type":
            return numpy_helper.from_list(value)
        case "optional_type":
            return numpy_helper.from_optional(value)
    if isinstance(value, onnx.TensorProto):
        return value
    return numpy_helper.from_array(numpy.asarray(value))


warnings.simplefilter("ignore")
folder = pathlib.Path(sys.argv[1])
older = {f.parent.name: f.read_bytes() for f in pathlib.Path(sys.argv[2]).rglob("model.onnx")}
for case in collect_testcases(None):
    model = case.model.SerializeToString()
    if older.get(case.name) == model:
        continue
    graph = case.model.graph
    (folder / case.name).mkdir(parents=True)
    (folder / case.name / "model.onnx").write_bytes(model)
    for i, (inputs, outputs) in enumerate(case.data_sets):
        data = folder / case.name / f"test_data_set_{i}"
        data.mkdir()
        for kind, values, ports in ("input", inputs, graph.input), ("output", outputs, graph.output):
            for j, (value, port) in enumerate(zip(values, ports)):
                (data / f"{kind}_{j}.pb").write_bytes(message(value, port.type).SerializeToString())
