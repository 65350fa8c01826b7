"""Kiln and onnxruntime on ONNX models that others exported, in f32, with as many threads each:

    onnx_models.py KILN [--threads N] [--rounds N] [MODEL ...]    (benches/peers/.venv/bin/python)

KILN is the command (`cargo build --release -p kiln-cli`, target/release/kiln). The sides alternate; the least time of
each is printed, and Kiln's divided by onnxruntime's.

Without models, five that the package `onnx` ships for its tests are measured, whose weights are made by the graph
itself: ResNet-50, SqueezeNet, ShuffleNet, DenseNet-121 and Inception v2, in onnx/backend/test/data/light.
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

FIVE = ("resnet50", "squeezenet", "shufflenet", "densenet121", "inception_v2")
SECONDS = 1.0


def shipped():
    light = pathlib.Path(onnx.__file__).parent / "backend/test/data/light"
    return [light / f"light_{name}.onnx" for name in FIVE]


def kiln(command, model, threads):
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
            kinds = {"tensor(float)": numpy.float32, "tensor(int64)": numpy.int64, "tensor(int32)": numpy.int32}
            self.inputs[port.name] = rng.standard_normal(shape).astype(kinds[port.type])

    def least(self):
        times = []
        until = time.perf_counter() + SECONDS
        while time.perf_counter() < until or not times:
            began = time.perf_counter()
            self.session.run(None, self.inputs)
            times.append(time.perf_counter() - began)
        return min(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kiln")
    parser.add_argument("models", nargs="*", type=pathlib.Path)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_intermixed_args()
    print(f"onnxruntime {onnxruntime.__version__}, {given.threads} threads")
    print("| | Kiln, ms | onnxruntime, ms | Kiln / onnxruntime |\n|---|---|---|---|")
    for model in given.models or shipped():
        peer = Peer(model, given.threads)
        pairs = [(kiln(given.kiln, model, given.threads), peer.least()) for _ in range(given.rounds)]
        own, other = (min(side) for side in zip(*pairs))
        print(f"| {model.stem} | {own * 1e3:.2f} | {other * 1e3:.2f} | {own / other:.2f} |", flush=True)


main()
