"""Times ONNX models of other exporters in f32, on Kiln and on onnxruntime with equal threads:

    onnx_models.py KILN [--threads N] [--rounds N] [MODEL ...]    (benches/peers/.venv/bin/python)

KILN is the command (`cargo build --release -p kiln-cli`, target/release/kiln). The sides alternate. The
minimum time of each is printed, and their ratio.

Without models, it runs five of the tests of package `onnx`, which generate their weights: ResNet-50, SqueezeNet,
ShuffleNet, DenseNet-121 and Inception v2, in onnx/backend/test/data/light.
"""

import argparse
import json
import os
import pathlib
import subprocess
import time

import numpy
import onnx
import onnxruntime

SHIPPED = ("resnet50", "squeezenet", "shufflenet", "densenet121", "inception_v2")
SECONDS = 1.0


def shipped_models():
    light = pathlib.Path(onnx.__file__).parent / "backend/test/data/light"
    return [light / f"light_{name}.onnx" for name in SHIPPED]


def time_kiln(command, model, threads):
    options = ["onnx", "bench", str(model), "--json", "--rounds", "1", "--time", str(int(SECONDS * 1000))]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    run = subprocess.run([command, *options], env=environment, capture_output=True, text=True, check=True)
    return min(min(entry["times"]) for entry in json.loads(run.stdout))


class Peer:
    def __init__(self, model, threads):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        self.session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        rng = numpy.random.default_rng(0)
        self.inputs = {}
        for port in self.session.get_inputs():
            shape = [d if isinstance(d, int) else 1 for d in port.shape]
            dtypes = {"tensor(float)": numpy.float32, "tensor(int64)": numpy.int64, "tensor(int32)": numpy.int32}
            self.inputs[port.name] = rng.standard_normal(shape).astype(dtypes[port.type])

    def min_time(self):
        times = []
        until = time.perf_counter() + SECONDS
        while time.perf_counter() < until or not times:
            start = time.perf_counter()
            self.session.run(None, self.inputs)
            times.append(time.perf_counter() - start)
        return min(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kiln")
    parser.add_argument("models", nargs="*", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_intermixed_args()
    print(f"onnxruntime {onnxruntime.__version__}, {args.threads} threads")
    print("| | Kiln, ms | onnxruntime, ms | Kiln / onnxruntime |\n|---|---|---|---|")
    for model in args.models or shipped_models():
        peer = Peer(model, args.threads)
        pairs = [(time_kiln(args.kiln, model, args.threads), peer.min_time()) for _ in range(args.rounds)]
        kiln_time, peer_time = (min(side) for side in zip(*pairs))
        times = f"{kiln_time * 1e3:.2f} | {peer_time * 1e3:.2f}"
        print(f"| {model.stem} | {times} | {kiln_time / peer_time:.2f} |", flush=True)


main()
