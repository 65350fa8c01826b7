"""Counts the kernels of networks and training steps with torch.compile on the CPU.

A kernel is a call by the generated wrapper of a generated C++ kernel or a library operator. Views and
allocations are not counted. A training step consists of forward, backward and optimiser step, each compiled.
"""

import re
import sys

import torch
from torch._inductor.utils import run_and_get_code

import torch_models

INPUTS = {
    "resnet50": [(1, 3, 224, 224)],
    "resnet50-8": [(8, 3, 224, 224)],
    "mobilenet": [(1, 3, 224, 224)],
    "unet": [(1, 3, 128, 128)],
    "encoder": [(1, 256, 768)],
    "decoder": [(1, 64, 768), (1, 256, 768)],
    "decoder-cached": [(1, 1, 768), (1, 12, 255, 64), (1, 12, 255, 64)],
    "lstm": [(4, 128), (4, 256), (4, 256)],
    "resnet18-step": [(16, 3, 64, 64)],
    "encoder-step": [(4, 256, 768)],
}
GENERATED = re.compile(r"^\s+(cpp_fused\w*|\w*cpp_template\w*)\(", re.M)
EXTERN = re.compile(r"^\s+(?:\w+ = )?(extern_kernels\.\w+|torch\.ops\.[\w.]+|aten\.[\w.]+)\(", re.M)


def count_calls(codes):
    """Returns the numbers of calls of generated kernels and of library operators."""
    generated = library = 0
    for code in codes:
        body = code[code.index("def call(") :].split("\nrunner = ")[0]
        generated += len(GENERATED.findall(body))
        library += len(EXTERN.findall(body))
    return generated, library


def count_kernels(name):
    torch.manual_seed(0)
    network = torch_models.model(name)
    x = [torch.randn(shape) for shape in INPUTS[name]]
    if not name.endswith("-step"):
        # Freezing folds batch norms.
        torch._inductor.config.freezing = True
        with torch.no_grad():
            _, codes = run_and_get_code(torch.compile(network), *x)
        return count_calls(codes)
    torch._inductor.config.freezing = False
    if name == "resnet18-step":
        x.append(torch.arange(16) * 61)
        loss_of = torch.nn.functional.cross_entropy
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    else:
        x.append(torch.randn(INPUTS[name][0]))
        loss_of = torch.nn.functional.mse_loss
        optimizer = torch.optim.AdamW(network.parameters())
    forward = torch.compile(lambda x, y: loss_of(network(x), y))
    update = torch.compile(optimizer.step)
    for _ in range(2):  # the first step creates the optimiser's state
        _, forward_backward = run_and_get_code(lambda: forward(*x).backward())
        _, updates = run_and_get_code(update)
        codes = forward_backward + updates or codes
        optimizer.zero_grad()
    return count_calls(codes)


# The fast path hides the kernels of an encoder layer in one operator.
torch.backends.mha.set_fastpath_enabled(False)
print(f"PyTorch {torch.__version__}")
for name in sys.argv[1:] or INPUTS:
    torch._dynamo.reset()
    generated, library = count_kernels(name)
    print(f"{name:<14} {generated + library:>4} kernels: {generated} generated, {library} of libraries", flush=True)
