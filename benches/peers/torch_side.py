"""The PyTorch side of the comparison, which runs the workload once per line of its input.

torch_side.py <torch|compiled> <workload> <start> <threads>
"""

import sys

import torch

import torch_models
from serving import read_start, serve, status

mode, name, path, threads = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
torch.set_num_threads(threads)
base = status("VmRSS")
state, inputs = read_start(path)
if torch_models.is_quantized(name):
    print("absent", flush=True)
    sys.exit()
network = torch_models.model(name)
network.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
del state
inputs = [torch.from_numpy(x) for x in inputs]
training = torch_models.trains(name)
narrow = torch_models.split_dtype(name)[1]
if narrow and (not training or name.startswith("attention")):
    network, inputs = network.to(narrow), [x.to(narrow) for x in inputs]
if mode == "compiled":
    # The fast path makes an encoder layer one operator, which prevents fusion.
    torch.backends.mha.set_fastpath_enabled(False)
    # Freezing folds batch norms and packs weights.
    torch._inductor.config.freezing = not training and not network.training
f = torch_models.step(name, network, mode == "compiled") if training else network
if mode == "compiled" and not training:
    f = torch.compile(f)


def run():
    if training:
        return f(*inputs).item()
    with torch.no_grad():
        result = f(*inputs)
    return result[0] if isinstance(result, tuple) else result


def read(result):
    return torch.as_tensor(result).float().numpy()


serve(torch.__version__, torch.get_num_threads(), base, run, read)
