"""How many kernels torch.compile makes of the networks and training steps, on the CPU.

A kernel is a call of the generated wrapper: of a generated C++ kernel, or of an operator of a library.
Views and allocations are not counted. A training step is forward, backward and the optimiser's step,
each compiled.
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


def calls(codes):
    """Calls of generated kernels, and of others."""
    generated = other = 0
    for code in codes:
        body = code[code.index("def call(") :].split("\nrunner = ")[0]
        generated += len(GENERATED.findall(body))
        other += len(EXTERN.findall(body))
    return generated, other


def count(name):
    torch.manual_seed(0)
    made = torch_models.model(name)
    x = [torch.randn(shape) for shape in INPUTS[name]]
    if not name.endswith("-step"):
        # Frozen weights are what folds batch norms.
        torch._inductor.config.freezing = True
        with torch.no_grad():
            _, codes = run_and_get_code(torch.compile(made), *x)
        return calls(codes)
    torch._inductor.config.freezing = False
    if name == "resnet18-step":
        x.append(torch.arange(16) * 61)
        loss_of = torch.nn.functional.cross_entropy
        optimizer = torch.optim.SGD(made.parameters(), lr=0.01, momentum=0.9)
    else:
        x.append(torch.randn(INPUTS[name][0]))
        loss_of = torch.nn.functional.mse_loss
        optimizer = torch.optim.AdamW(made.parameters())
    forward = torch.compile(lambda x, y: loss_of(made(x), y))
    update = torch.compile(optimizer.step)
    for _ in range(2):  # the first step makes the optimiser's state
        _, there_and_back = run_and_get_code(lambda: forward(*x).backward())
        _, updates = run_and_get_code(update)
        codes = there_and_back + updates or codes
        optimizer.zero_grad()
    return calls(codes)


# Else the whole encoder layer is one operator, whose kernels can't be seen.
torch.backends.mha.set_fastpath_enabled(False)
print(f"PyTorch {torch.__version__}")
for name in sys.argv[1:] or INPUTS:
    torch._dynamo.reset()
    generated, other = count(name)
    print(f"{name:<14} {generated + other:>4} kernels: {generated} generated, {other} of libraries", flush=True)
