"""Trains a small convolutional network and a small language model with PyTorch in f32, with autocast to bf16, and with
autocast to f16 and a GradScaler: writes the losses to `mixed.json` beside this file. Weights and data are numbers by a
formula, which `mixed.rs` has too."""

import json
import pathlib

import numpy as np
import torch
import torch.nn.functional as F

STEPS, SEEDS = 200, 5
torch.set_num_threads(2)


def uniform(seed, *shape):
    """Numbers in [-1, 1)."""
    with np.errstate(over="ignore"):
        z = (np.uint64(seed) << np.uint64(32)) + np.arange(int(np.prod(shape)), dtype=np.uint64)
        z = z * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    numbers = (z >> np.uint64(11)).astype(np.float64) / 2.0**52 - 1.0
    return torch.from_numpy(numbers.astype(np.float32).reshape(shape))


def weights(seed, shapes):
    """A parameter of each shape, within ±1 / √(what one output is made of)."""
    made = [uniform(seed * 100 + i, *s) * float(np.float32(np.prod(s[1:]) ** -0.5)) for i, s in enumerate(shapes)]
    return [torch.nn.Parameter(w) for w in made]


def integers(seed, n, below):
    return ((uniform(seed, n).double() + 1.0) / 2.0 * below).long()


CONV = [(8, 1, 3, 3), (16, 8, 3, 3), (10, 256)]


def conv_batch(step):
    labels = integers(7000 + step, 32, 10)
    patterns = uniform(77, 10, 64)
    x = patterns[labels] * 0.5 + uniform(8000 + step, 32, 64)
    return x.reshape(32, 1, 8, 8), labels


def conv_loss(w, batch):
    x, labels = batch
    x = F.conv2d(x, w[0], padding=1).relu()
    x = F.conv2d(x, w[1], padding=1, stride=2).relu()
    return F.cross_entropy(F.linear(x.flatten(1), w[2]), labels)


# Tokens, places, query/key/value, the projection, the two layers between, the head.
TEXT = [(17, 32), (12, 32), (96, 32), (32, 32), (64, 32), (32, 64), (17, 32)]


def text_batch(step):
    factor, token = integers(9000 + step, 16, 2) + 2, integers(9500 + step, 16, 17)
    rows = []
    for _ in range(13):
        rows.append(token)
        token = (token * factor + 1) % 17
    rows = torch.stack(rows, 1)
    return rows[:, :-1], rows[:, 1:]


def text_loss(w, batch):
    tokens, following = batch
    x = F.embedding(tokens, w[0]) + w[1]
    q, k, v = F.linear(F.layer_norm(x, (32,)), w[2]).reshape(16, 12, 3, 4, 8).permute(2, 0, 3, 1, 4)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + F.linear(y.transpose(1, 2).reshape(16, 12, 32), w[3])
    x = x + F.linear(F.gelu(F.linear(F.layer_norm(x, (32,)), w[4])), w[5])
    scores = F.linear(F.layer_norm(x, (32,)), w[6])
    return F.cross_entropy(scores.reshape(-1, 17), following.reshape(-1))


def run(kind, seed, dtype):
    shapes, batch, loss_of = {"conv": (CONV, conv_batch, conv_loss), "text": (TEXT, text_batch, text_loss)}[kind]
    w = weights(seed, shapes)
    if kind == "conv":
        optimizer = torch.optim.SGD(w, lr=0.02, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(w, lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=dtype == torch.float16)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
            loss = loss_of(w, batch(step))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(round(loss.item(), 6))
    return losses


runs = {
    kind: {
        name: [run(kind, seed, dtype) for seed in range(SEEDS)]
        for name, dtype in (("f32", None), ("bf16", torch.bfloat16), ("f16", torch.float16))
    }
    for kind in ("conv", "text")
}
path = pathlib.Path(__file__).with_suffix(".json")
path.write_text(json.dumps(runs) + "\n")
