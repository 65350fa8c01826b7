"""The onnxruntime side of the comparison, which runs inference once per line of its input.

onnx_side.py export <workload> <start>: writes <start>.onnx if the workload can be exported
onnx_side.py <workload> <start> <threads>
"""

import os
import sys

from serving import read_start, serve, status


def export(name, path):
    import torch

    import torch_models

    if torch_models.trains(name) or name == "batch-norm-relu":
        return  # training
    if torch_models.split_dtype(name)[1]:
        return  # onnxruntime has no kernels for networks of bf16
    state, inputs = read_start(path)
    network = torch_models.model(name)
    network.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
    torch.backends.mha.set_fastpath_enabled(False)
    inputs = tuple(torch.from_numpy(x) for x in inputs)
    torch.onnx.export(network, inputs, path + ".onnx", dynamo=True, verbose=False, external_data=False)
    if torch_models.is_quantized(name):
        quantize(name, path + ".onnx", [x.numpy() for x in inputs])


def quantize(name, path, inputs):
    """Quantises a model: encoders dynamically, convolutional networks statically with the inputs as calibration data.
    `reduce_range` applies to weights."""
    from onnxruntime import quantization

    options = {"weight_type": quantization.QuantType.QInt8, "reduce_range": name.endswith("-int7")}
    if name.startswith("encoder"):
        quantization.quantize_dynamic(path, path, **options)
        return
    from onnxruntime.quantization.shape_inference import quant_pre_process

    quant_pre_process(path, path, skip_symbolic_shape=True)

    class Batch(quantization.CalibrationDataReader):
        left = [inputs]

        def get_next(self):
            names = [f"{i.name}" for i in onnx.load(path).graph.input]
            return dict(zip(names, self.left.pop())) if self.left else None

    import onnx

    quantization.quantize_static(
        path,
        path,
        Batch(),
        per_channel=True,
        activation_type=quantization.QuantType.QUInt8,
        **options,
    )


def run(name, path, threads):
    import onnxruntime

    if not os.path.exists(path + ".onnx"):
        print("absent", flush=True)
        return
    base = status("VmRSS")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path + ".onnx", options, ["CPUExecutionProvider"])
    _, inputs = read_start(path)
    feeds = {i.name: x for i, x in zip(session.get_inputs(), inputs)}
    serve(onnxruntime.__version__, threads, base, lambda: session.run(None, feeds)[0])


if sys.argv[1] == "export":
    export(*sys.argv[2:])
else:
    run(sys.argv[1], sys.argv[2], int(sys.argv[3]))
