"""Times the work of one part with PyTorch; prints a line for each case: its name, a tab, and seconds."""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

if not torch.cuda.is_available():
    sys.exit("torch sees no GPU")
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cudnn.benchmark = True
TYPES = [(torch.float32, "f32"), (torch.float16, "f16"), (torch.bfloat16, "bf16")]


def round_of(f, count):
    start = time.perf_counter()
    for _ in range(count):
        f()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def seconds(f):
    round_of(f, 5)
    count = 1
    while round_of(f, count) < 0.05 and count < 1 << 20:
        count *= 2
    times = sorted(round_of(f, count) / count for _ in range(7))
    return times[3]


def report(name, f, compiled=False):
    best = seconds(f)
    if compiled:
        try:
            best = min(best, seconds(torch.compile(f)))
        except Exception as e:
            print(f"note\tPyTorch's compiler does not take {name}: {type(e).__name__}")
    print(f"{name}\t{best}", flush=True)
    torch.cuda.empty_cache()


def randn(*shape, dtype=torch.float32):
    return torch.randn(*shape, device="cuda").to(dtype)


def gelu_chain(x):
    inner = (x + x * x * x * 0.044715) * 0.79788456
    return (x * 0.5 * (inner.tanh() + 1.0)) * x.sigmoid() + x


def backward(f, inputs, dy):
    """The backward pass alone; compiled, the forward work that it needs is part of it."""
    leaves = [x.requires_grad_() for x in inputs]
    y = f(*leaves)
    return lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)


def bandwidth():
    x, dy = randn(4096, 8192), randn(4096, 8192)
    w, b = randn(8192), randn(8192)
    report("gelu chain", lambda: gelu_chain(x), True)
    report("softmax", lambda: torch.softmax(x, -1), True)
    norm = lambda x, w, b: F.layer_norm(x, (8192,), w, b)
    report("layer norm", lambda: norm(x, w, b), True)
    report("layer norm backward", backward(norm, [x.clone(), w.clone(), b.clone()], dy))
    report("softmax backward", backward(lambda x: torch.softmax(x, -1), [x.clone()], dy))
    x, dy = randn(32, 64, 128, 128), randn(32, 64, 128, 128)
    w, b = randn(64), randn(64)
    norm = lambda x, w, b: F.batch_norm(x, None, None, w, b, True)
    report("batch norm", lambda: norm(x, w, b), True)
    report("batch norm backward", backward(norm, [x.clone(), w.clone(), b.clone()], dy))


def products():
    for dtype, name in TYPES:
        for m, n, k in [(1024, 1024, 1024), (4096, 4096, 4096), (8192, 1024, 4096)]:
            a, b = randn(m, k, dtype=dtype), randn(k, n, dtype=dtype)
            report(f"matmul {m}x{n}x{k} {name}", lambda: a @ b)
    for dtype, name in TYPES:
        for n, c, o, size, kernel in [
            (32, 64, 64, 56, 3),
            (32, 256, 256, 14, 3),
            (32, 256, 1024, 14, 1),
        ]:
            x, w = randn(n, c, size, size, dtype=dtype), randn(o, c, kernel, kernel, dtype=dtype)
            f = lambda: F.conv2d(x, w, None, 1, kernel // 2)
            report(f"conv2d {n}x{c}x{size}x{size}, {o} of {kernel}x{kernel}, {name}", f)


def conv_norm(before, after, kernel, stride):
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after))


class Bottleneck(nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            conv_norm(before, width, 1, 1),
            nn.ReLU(),
            conv_norm(width, width, 3, stride),
            nn.ReLU(),
            conv_norm(width, 4 * width, 1, 1),
        )
        same = (before, stride) == (4 * width, 1)
        self.shortcut = nn.Identity() if same else conv_norm(before, 4 * width, 1, stride)

    def forward(self, x):
        return (self.body(x) + self.shortcut(x)).relu()


def resnet50():
    layers = [conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for i, count in enumerate([3, 4, 6, 3]):
        for block in range(count):
            layers.append(Bottleneck(before, 64 << i, 2 if i > 0 and block == 0 else 1))
            before = 4 * (64 << i)
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000)]
    return nn.Sequential(*layers, *head)


@torch.no_grad()
def models():
    for dtype, name in [TYPES[0], TYPES[2]]:
        model = resnet50().eval().cuda().to(dtype)
        x = randn(32, 3, 224, 224, dtype=dtype)
        report(f"ResNet-50, 32 images of 224x224, {name}", lambda: model(x), True)
        layer = nn.TransformerEncoderLayer(1024, 16, 4096, 0.0, "gelu", batch_first=True)
        layer = layer.eval().cuda().to(dtype)
        x = randn(8, 512, 1024, dtype=dtype)
        name = f"encoder block, d 1024, 16 heads, 8x512 tokens, {name}"
        report(name, lambda: layer(x), True)


print(f"note\tPyTorch {torch.__version__}, the better of eager and compiled where both are tried")
{"bandwidth": bandwidth, "products": products, "models": models}[sys.argv[1]]()
