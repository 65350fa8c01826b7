"""The PyTorch side of the comparison: trains a workload, one step a line of its input."""

import json
import sys
import time

import numpy
import torch
from torch import nn


class BasicBlock(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(after)
        self.downsample = None
        if (before, stride) != (after, 1):
            self.downsample = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x):
        y = self.bn1(self.conv1(x)).relu()
        y = self.bn2(self.conv2(y))
        shortcut = x if self.downsample is None else self.downsample(x)
        return (y + shortcut).relu()


class ResNet18(nn.Module):
    def __init__(self, classes):
        super().__init__()

        def layer(before, after, stride):
            return nn.Sequential(BasicBlock(before, after, stride), BasicBlock(after, after, 1))

        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = layer(64, 64, 1)
        self.layer2 = layer(64, 128, 2)
        self.layer3 = layer(128, 256, 2)
        self.layer4 = layer(256, 512, 2)
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        x = nn.functional.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


def read_tensors(path):
    """The tensors of a safetensors file."""
    kinds = {"F32": numpy.float32, "I64": numpy.int64}
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    header.pop("__metadata__", None)

    def tensor(info):
        begin, end = info["data_offsets"]
        array = numpy.frombuffer(data[begin:end], kinds[info["dtype"]])
        return torch.from_numpy(array.copy().reshape(info["shape"]))

    return {name: tensor(info) for name, info in header.items()}


def status(key):
    """A size from /proc/self/status, in bytes."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(key + ":"))
    return int(line.split()[1]) * 1024


def main():
    workload, path, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(threads)
    base = status("VmRSS")
    state = read_tensors(path)
    x, y = state.pop("batch.0"), state.pop("batch.1")
    if workload == "resnet18":
        model = ResNet18(1000)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        loss_of = nn.functional.cross_entropy
    else:
        model = nn.TransformerEncoderLayer(
            768, 12, 3072, dropout=0.0, activation="gelu", batch_first=True
        )
        optimizer = torch.optim.AdamW(model.parameters())
        loss_of = nn.functional.mse_loss
    model.load_state_dict(state)
    del state
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    print("ready", torch.__version__, torch.get_num_threads(), sep="\t", flush=True)
    for line in sys.stdin:
        if line.strip() == "memory":
            print(status("VmHWM") - base, flush=True)
            continue
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        value = loss.item()
        print(time.perf_counter() - start, value, sep="\t", flush=True)


main()
