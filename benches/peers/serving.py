"""What the Python sides of the comparison share: the file that they start from and their answers."""

import json
import sys
import time

import numpy


def read_start(path):
    """Weights and inputs of a safetensors file, as arrays."""
    kinds = {"F32": numpy.float32, "I64": numpy.int64}
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    header.pop("__metadata__", None)

    def array(info):
        begin, end = info["data_offsets"]
        return numpy.frombuffer(data[begin:end], kinds[info["dtype"]]).reshape(info["shape"]).copy()

    state = {name: array(info) for name, info in header.items()}
    inputs = []
    while f"batch.{len(inputs)}" in state:
        inputs.append(state.pop(f"batch.{len(inputs)}"))
    return state, inputs


def status(key):
    """A size from /proc/self/status, in bytes."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(key + ":"))
    return int(line.split()[1]) * 1024


def serve(version, threads, base, run):
    """Answers the lines of the standard input; `run` gives the result of one run as an array."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    print("ready", version, threads, sep="\t", flush=True)
    for line in sys.stdin:
        if line.strip() == "memory":
            print(status("VmHWM") - base, flush=True)
            continue
        start = time.perf_counter()
        result = run()
        seconds = time.perf_counter() - start
        value = numpy.abs(numpy.asarray(result, dtype=numpy.float64)).mean()
        print(seconds, value, sep="\t", flush=True)
