"""The networks and operations of the comparison in PyTorch, with Kiln's parameter names."""

import torch
from torch import nn
from torch.nn import functional


def conv(in_channels, out_channels, kernel, stride):
    return nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, bias=False)


def shortcut(in_channels, out_channels, stride):
    if (in_channels, stride) == (out_channels, 1):
        return None
    return nn.Sequential(conv(in_channels, out_channels, 1, stride), nn.BatchNorm2d(out_channels))


class BasicBlock(nn.Module):
    def __init__(self, in_channels, out_channels, stride):
        super().__init__()
        self.conv1 = conv(in_channels, out_channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = conv(out_channels, out_channels, 3, 1)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.downsample = shortcut(in_channels, out_channels, stride)

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class Bottleneck(nn.Module):
    def __init__(self, in_channels, width, stride):
        super().__init__()
        self.conv1 = conv(in_channels, width, 1, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = conv(width, 4 * width, 1, 1)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = shortcut(in_channels, 4 * width, stride)

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y)).relu()
        y = self.bn3(self.conv3(y))
        return (y + (x if self.downsample is None else self.downsample(x))).relu()


class ResNet(nn.Module):
    def __init__(self, block, depths, growth, classes):
        super().__init__()
        in_channels = 64

        def layer(width, depth, stride):
            nonlocal in_channels
            blocks = []
            for i in range(depth):
                blocks.append(block(in_channels, width, stride if i == 0 else 1))
                in_channels = growth * width
            return nn.Sequential(*blocks)

        self.conv1 = conv(3, 64, 7, 2)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = layer(64, depths[0], 1)
        self.layer2 = layer(128, depths[1], 2)
        self.layer3 = layer(256, depths[2], 2)
        self.layer4 = layer(512, depths[3], 2)
        self.fc = nn.Linear(512 * growth, classes)

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        x = functional.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(functional.adaptive_avg_pool2d(x, 1).flatten(1))


def conv_norm(in_channels, out_channels, kernel, stride, groups, activation):
    conv = nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels, eps=1e-3, momentum=0.01), activation)


class SqueezeExcitation(nn.Module):
    def __init__(self, channels):
        super().__init__()
        squeezed = max((channels // 4 + 4) // 8 * 8, 8)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x):
        y = self.fc1(functional.adaptive_avg_pool2d(x, 1)).relu()
        return x * functional.hardsigmoid(self.fc2(y))


class InvertedResidual(nn.Module):
    def __init__(self, in_channels, kernel, expanded, out_channels, squeezes, activation, stride):
        super().__init__()
        layers = []
        if expanded != in_channels:
            layers.append(conv_norm(in_channels, expanded, 1, 1, 1, activation))
        layers.append(conv_norm(expanded, expanded, kernel, stride, expanded, activation))
        if squeezes:
            layers.append(SqueezeExcitation(expanded))
        layers.append(conv_norm(expanded, out_channels, 1, 1, 1, nn.Identity()))
        self.block = nn.Sequential(*layers)
        self.shortcut = stride == 1 and in_channels == out_channels

    def forward(self, x):
        y = self.block(x)
        return y + x if self.shortcut else y


class MobileNetV3(nn.Module):
    def __init__(self, classes):
        super().__init__()
        r, h = nn.ReLU(), nn.Hardswish()
        rows = [
            (16, 3, 16, 16, True, r, 2),
            (16, 3, 72, 24, False, r, 2),
            (24, 3, 88, 24, False, r, 1),
            (24, 5, 96, 40, True, h, 2),
            (40, 5, 240, 40, True, h, 1),
            (40, 5, 240, 40, True, h, 1),
            (40, 5, 120, 48, True, h, 1),
            (48, 5, 144, 48, True, h, 1),
            (48, 5, 288, 96, True, h, 2),
            (96, 5, 576, 96, True, h, 1),
            (96, 5, 576, 96, True, h, 1),
        ]
        blocks = [InvertedResidual(*row) for row in rows]
        stem, head = conv_norm(3, 16, 3, 2, 1, h), conv_norm(96, 576, 1, 1, 1, h)
        self.features = nn.Sequential(stem, *blocks, head)
        self.classifier = nn.Sequential(
            nn.Linear(576, 1024), h, nn.Dropout(0.2), nn.Linear(1024, classes)
        )

    def forward(self, x):
        x = functional.adaptive_avg_pool2d(self.features(x), 1).flatten(1)
        return self.classifier(x)


def double_conv(in_channels, out_channels):
    layers = []
    for channels in [in_channels, out_channels]:
        layers += [nn.Conv2d(channels, out_channels, 3, 1, 1), nn.BatchNorm2d(out_channels), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    def __init__(self, channels, width, levels, classes):
        super().__init__()
        widths = [width << level for level in range(levels)]
        down = [double_conv(a, b) for a, b in zip([channels] + widths, widths)]
        up = [nn.ConvTranspose2d(2 * w, w, 2, 2) for w in reversed(widths)]
        self.down = nn.ModuleList(down)
        self.bottom = double_conv(widths[-1], 2 * widths[-1])
        self.up = nn.ModuleList(up)
        self.merge = nn.ModuleList([double_conv(2 * w, w) for w in reversed(widths)])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        skips = []
        for level in self.down:
            x = level(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.bottom(x)
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


class LstmCell(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.ih = nn.Linear(features, 4 * hidden)
        self.hh = nn.Linear(hidden, 4 * hidden)

    def forward(self, x, h, c):
        i, f, g, o = (self.ih(x) + self.hh(h)).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c


class Decoder(nn.TransformerDecoderLayer):
    """A decoder layer with causal self-attention."""

    def forward(self, x, memory):
        n = x.shape[1]
        mask = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        return super().forward(x, memory, mask, tgt_is_causal=True)


class CachedBlock(nn.Module):
    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x, keys, values):
        n, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(n, length, 3 * self.heads, width // self.heads)
        q, k, v = split.transpose(1, 2).chunk(3, 1)
        k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        y = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(n, length, width))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x)))), k, v


def lstm(features, hidden):
    """Returns an LSTM whose result is the outputs of all steps."""
    network = nn.LSTM(features, hidden)
    network.register_forward_hook(lambda module, x, result: result[0])
    return network


class Function(nn.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    def forward(self, *x):
        return self.f(*x)


class BatchNormRelu(nn.BatchNorm2d):
    def forward(self, x):
        return super().forward(x).relu()


def transformer(kind):
    return kind(768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True)


MODELS = {
    "softmax": lambda: Function(lambda x: x.softmax(1)),
    "layer-norm": lambda: nn.LayerNorm(1024),
    "batch-norm-relu": lambda: BatchNormRelu(64),
    "gelu-chain": lambda: Function(lambda x, a, b, c: functional.gelu(x * a + b) * c),
    "matmul": lambda: Function(torch.matmul),
    "linear": lambda: nn.Linear(768, 3072),
    "bmm": lambda: Function(torch.matmul),
    "matvec": lambda: Function(torch.matmul),
    **{
        f"attention-{keys}{step}": lambda: Function(functional.scaled_dot_product_attention)
        for keys in (256, 1024, 4096)
        for step in ("", "-step")
    },
    "resnet50": lambda: ResNet(Bottleneck, [3, 4, 6, 3], 4, 1000),
    "resnet50-8": lambda: ResNet(Bottleneck, [3, 4, 6, 3], 4, 1000),
    "mobilenet": lambda: MobileNetV3(1000),
    "unet": lambda: UNet(3, 16, 4, 2),
    "encoder": lambda: transformer(nn.TransformerEncoderLayer),
    "decoder": lambda: transformer(Decoder),
    "decoder-cached": lambda: CachedBlock(768, 12, 3072),
    "lstm": lambda: LstmCell(128, 256),
    "resnet18-step": lambda: ResNet(BasicBlock, [2, 2, 2, 2], 1, 1000),
    "encoder-step": lambda: transformer(nn.TransformerEncoderLayer),
    "lstm-step": lambda: lstm(128, 256),
}


# The suffixes of names: the dtype of a network, or of autocast in training steps.
NARROW = {"bf16": torch.bfloat16, "f16": torch.float16}


def split_dtype(name):
    """Returns a name without the suffix of a 16-bit dtype, and that dtype or None."""
    name = name.removesuffix("-int8").removesuffix("-int7")
    base, _, suffix = name.rpartition("-")
    return (base, NARROW[suffix]) if suffix in NARROW else (name, None)


def is_quantized(name):
    """True if a workload multiplies 8-bit integers."""
    return name.endswith(("-int8", "-int7"))


def trains(name):
    """True if a workload is a training step."""
    return split_dtype(name)[0].endswith("-step")


def model(name):
    """Returns a network with random weights, in training mode if the workload trains."""
    network = MODELS[split_dtype(name)[0]]()
    return network.train(trains(name) or name == "batch-norm-relu")


def gradients(f, compiled):
    """Returns a function that computes the mean square of `f` and the gradients of its inputs."""

    def forward(*x):
        return f(*x).square().mean()

    if compiled:
        forward = torch.compile(forward)

    def run(*x):
        x = [x.detach().requires_grad_() for x in x]
        loss = forward(*x)
        loss.backward()
        return loss.detach()

    return run


def step(name, network, compiled=False):
    """Returns a training step: a function of a batch that returns the loss."""
    name, narrow = split_dtype(name)
    if name.startswith("attention"):
        return gradients(network, compiled)
    if name == "resnet18-step":
        optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
        loss_of = functional.cross_entropy
    else:
        optimizer = torch.optim.AdamW(network.parameters())
        loss_of = functional.mse_loss

    scaler = torch.amp.GradScaler("cpu", enabled=narrow == torch.float16)

    def forward(x, y):
        with torch.autocast("cpu", narrow, enabled=narrow is not None):
            return loss_of(network(x), y)

    update = optimizer.step
    if compiled:
        forward, update = torch.compile(forward), torch.compile(update)

    def run(x, y):
        optimizer.zero_grad()
        loss = forward(x, y)
        scaler.scale(loss).backward()
        if scaler.is_enabled():
            scaler.step(optimizer)
            scaler.update()
        else:
            update()
        return loss.detach()

    return run
