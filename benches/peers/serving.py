"""Reading of start files and answering of requests, shared by the Python sides of the comparison."""

import json
import sys
import time

import numpy


def read_start(path):
    """Returns the weights and inputs of a safetensors file as arrays. bf16, which NumPy lacks, becomes float32."""
    dtypes = {"F32": numpy.float32, "I64": numpy.int64, "BF16": numpy.uint16}
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    header.pop("__metadata__", None)

    def array(info):
        begin, end = info["data_offsets"]
        numbers = numpy.frombuffer(data[begin:end], dtypes[info["dtype"]]).reshape(info["shape"])
        if info["dtype"] == "BF16":
            return (numbers.astype(numpy.uint32) << 16).view(numpy.float32)
        return numbers.copy()

    state = {name: array(info) for name, info in header.items()}
    inputs = []
    while f"batch.{len(inputs)}" in state:
        inputs.append(state.pop(f"batch.{len(inputs)}"))
    return state, inputs


def status(key):
    """Returns a size from /proc/self/status in bytes."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(key + ":"))
    return int(line.split()[1]) * 1024


def serve(version, threads, base, run, read=numpy.asarray):
    """Answers the lines of the standard input. `run` returns the result of a run, `read` converts it to an array."""
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
        value = numpy.abs(read(result).astype(numpy.float64)).mean()
        print(seconds, value, sep="\t", flush=True)
