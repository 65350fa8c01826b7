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
TYPES = [(torch.bfloat16, "bf16"), (torch.float16, "f16"), (torch.float32, "f32")]


COLD = 256 << 20
ROUNDS = 9


def seconds(f, sets):
    """The median time of a run, of as many as take 3 ms, on sets of operands in turn: of a CUDA graph by events."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            for x in sets:
                f(*x)
        start = time.perf_counter()
        for x in sets:
            f(*x)
        torch.cuda.synchronize()
        once = (time.perf_counter() - start) / len(sets)
        runs = min(max(int(0.003 / once), len(sets)), 256)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            for i in range(runs):
                f(*sets[i % len(sets)])
    times = []
    for _ in range(ROUNDS + 1):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / runs)
    return sorted(times[1:])[ROUNDS // 2]


def cold(make):
    """Sets of operands, so many that no run finds its own in a cache."""
    first = make()
    size = sum(x.numel() * x.element_size() for x in first)
    return [first] + [make() for _ in range(min(max(-(-COLD // max(size, 1)), 1), 64) - 1)]


def report(name, f, make, compiled=False):
    sets = cold(make)
    best = seconds(f, sets)
    if compiled:
        try:
            best = min(best, seconds(torch.compile(f), sets))
        except Exception as e:
            print(f"note\tPyTorch's compiler does not take {name}: {type(e).__name__}")
    print(f"{name}\t{best}", flush=True)
    del sets
    torch.cuda.empty_cache()


def randn(*shape, dtype=torch.bfloat16):
    return torch.rand(*shape, device="cuda").mul_(2).sub_(1).to(dtype)


def gelu_chain(x):
    inner = (x + x * x * x * 0.044715) * 0.79788456
    return (x * 0.5 * (inner.tanh() + 1.0)) * x.sigmoid() + x


def adamw(p, g, m, v):
    m = m * 0.9 + g * 0.1
    v = v.abs() * 0.999 + g * g * 0.001
    return p * (1.0 - 1e-5) - m / (v.sqrt() + 1e-8) * 1e-3, m, v


def rows():
    wide = (16384, 4096)
    report("gelu chain", gelu_chain, lambda: [randn(*wide)], True)
    report("softmax", lambda x: torch.softmax(x, -1), lambda: [randn(*wide)], True)
    back = torch.ops.aten._softmax_backward_data
    report(
        "softmax backward",
        lambda y, dy: back(dy, y, -1, torch.bfloat16),
        lambda: [randn(*wide), randn(*wide)],
    )
    for width in [768, 4096]:
        shape = (65536 * 1024 // width, width)
        weight, bias = randn(width), randn(width)
        norm = lambda x: F.layer_norm(x, (width,), weight, bias)
        report(f"layer norm of {width}", norm, lambda: [randn(*shape)], True)

        def norm_back(x, dy, mean, scale):
            args = (dy, x, (width,), mean, scale, weight, bias, [True] * 3)
            return torch.ops.aten.native_layer_norm_backward(*args)

        one = lambda: torch.ones(shape[0], 1, device="cuda")
        make = lambda: [randn(*shape), randn(*shape), one(), one()]
        report(f"layer norm of {width} backward", norm_back, make)
    labels = torch.randint(0, 16, (8192,), device="cuda")

    def entropy(x):
        p = torch.log_softmax(x, -1)
        loss = F.nll_loss(p, labels)
        g = p.float().exp()
        g[torch.arange(8192, device="cuda"), labels] -= 1.0
        return loss, (g / 8192).to(x.dtype)

    report("cross-entropy and its gradient", entropy, lambda: [randn(8192, 50257)], True)
    last = lambda: randn(64, 256, 56, 56).to(memory_format=torch.channels_last)
    weight, bias = randn(256), randn(256)
    norm = lambda x: F.batch_norm(x, None, None, weight, bias, True)
    report("batch norm, channels last", norm, lambda: [last()])
    mean, scale = torch.zeros(256, device="cuda"), torch.ones(256, device="cuda")

    def norm_back(x, dy):
        args = (dy, x, weight, None, None, mean, scale, True, 1e-5, [True] * 3)
        return torch.ops.aten.native_batch_norm_backward(*args)

    report("batch norm backward, channels last", norm_back, lambda: [last(), last()])
    single = lambda: randn(4096, 16384, dtype=torch.float32)
    report("AdamW of f32", adamw, lambda: [single() for _ in range(4)], True)
    single = lambda: [randn(*wide, dtype=torch.float32)]
    report("cumulative sum of rows, f32", lambda x: x.cumsum(-1), single)
    report("sum of columns, f32", lambda x: x.sum(0), single)
    report("transpose, f32", lambda x: x.t().contiguous(), single)


def products():
    for dtype, name in TYPES:
        for m, n, k in [
            (4096, 4096, 4096),
            (8192, 8192, 8192),
            (1024, 1024, 1024),
            (8192, 1024, 4096),
            (64, 4096, 4096),
        ]:
            make = lambda: [randn(m, k, dtype=dtype), randn(k, n, dtype=dtype)]
            report(f"matmul {m}x{n}x{k} {name}", torch.matmul, make)


def convolutions():
    for dtype, name in [TYPES[0], TYPES[2]]:
        for n, c, o, size, kernel in [
            (64, 64, 64, 56, 3),
            (64, 256, 256, 14, 3),
            (64, 256, 1024, 14, 1),
            (64, 512, 512, 7, 3),
        ]:
            last = lambda *shape: randn(*shape, dtype=dtype).to(memory_format=torch.channels_last)
            pad = kernel // 2
            start = f"conv2d {n}x{c}x{size}x{size}, {o} of {kernel}x{kernel}, {name}, "
            make = lambda: [last(n, c, size, size), last(o, c, kernel, kernel)]
            report(start + "forward", lambda x, w: F.conv2d(x, w, None, 1, pad), make)
            make = lambda: [last(n, c, size, size), last(o, c, kernel, kernel), last(n, o, size, size)]
            for which, what in enumerate(["gradient of images", "gradient of weights"]):
                mask = [which == 0, which == 1, False]

                def back(x, w, dy):
                    args = (dy, x, w, None, [1, 1], [pad, pad], [1, 1], False, [0, 0], 1, mask)
                    return torch.ops.aten.convolution_backward(*args)

                report(start + what, back, make)


def attention():
    for batch, heads, tokens, width in [(4, 16, 2048, 64), (2, 16, 4096, 128), (8, 12, 1024, 64)]:
        name = f"attention {batch}x{heads}x{tokens}x{width} bf16, "
        make = lambda: [randn(batch, heads, tokens, width) for _ in range(3)]
        for causal, start in [(False, ""), (True, "causal ")]:
            f = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
            report(start + name + "forward", f, make)

        def back(q, k, v, dy):
            leaves = [x.detach().requires_grad_() for x in (q, k, v)]
            y = F.scaled_dot_product_attention(*leaves, is_causal=True)
            return torch.autograd.grad(y, leaves, dy)

        make = lambda: [randn(batch, heads, tokens, width) for _ in range(4)]
        report("causal " + name + "forward and backward", back, make)


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


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        b, t, d = x.shape
        qkv = self.qkv(self.norms[0](x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.norms[1](x))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(50257, 768), nn.Embedding(1024, 768)
        self.blocks = nn.Sequential(*[Block(768, 12) for _ in range(12)])
        self.norm = nn.LayerNorm(768)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device="cuda"))
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


def host(name, f):
    """The median time of a call, of many that are given to the device before it is waited for."""
    for _ in range(5):
        f()
    torch.cuda.synchronize()
    times = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(10):
            f()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / 10)
    print(f"{name}\t{sorted(times)[3]}", flush=True)


def step(name, model, x, labels):
    rule = torch.optim.SGD(model.parameters(), 1e-4)
    compiled = torch.compile(model)

    def once():
        rule.zero_grad()
        scores = compiled(x)
        loss = F.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels)
        loss.backward()
        rule.step()

    host(name, once)
    torch.cuda.empty_cache()


def models():
    bf16 = torch.bfloat16
    images = randn(64, 3, 224, 224).to(memory_format=torch.channels_last)
    model = resnet50().cuda().to(bf16).to(memory_format=torch.channels_last)
    name = "training step of ResNet-50, 64 images of 224x224, bf16"
    step(name, model, images, torch.randint(0, 10, (64,), device="cuda"))
    tokens = torch.randint(0, 50257, (8, 1024), device="cuda")
    labels = torch.randint(0, 50257, (8192,), device="cuda")
    name = "training step of GPT-2 124M, 8x1024 tokens, bf16"
    step(name, GPT2().cuda().to(bf16), tokens, labels)
    with torch.no_grad():
        model, few = torch.compile(model.eval()), images[:32]
        host("ResNet-50, 32 images of 224x224, bf16", lambda: model(few))
        layer = nn.TransformerEncoderLayer(1024, 16, 4096, 0.0, "gelu", batch_first=True)
        layer = torch.compile(layer.eval().cuda().to(bf16))
        x = randn(8, 512, 1024)
        host("encoder block, d 1024, 16 heads, 8x512 tokens, bf16", lambda: layer(x))


print(f"note\tPyTorch {torch.__version__}, the better of eager and compiled where both are tried")
globals()[sys.argv[1]]()
