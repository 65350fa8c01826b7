"""Writes reference.json: what a network looks at, by PyTorch.

    python3 reference.py > reference.json

The network and the images follow from formulas, which main.rs has too.
"""

import json
import math

import torch


def numbers(shape, seed):
    count = math.prod(shape)
    values = [math.sin(0.7 * i + 0.03 * i * i + seed) * 0.5 for i in range(count)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


class Guided(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g.clamp(min=0) * (x > 0)


def network(x, relu):
    """Scores [n, 5] of images [n, 2, 7, 6], and the maps of both layers."""
    first = relu(torch.conv2d(x, numbers((4, 2, 3, 3), 1), numbers((4,), 2), padding=1))
    maps = relu(torch.conv2d(first, numbers((6, 4, 3, 3), 3), numbers((6,), 4), stride=2))
    return maps.mean((2, 3)) @ numbers((5, 6), 5).T + numbers((5,), 6), first, maps


def inspected(classes):
    x = numbers((3, 2, 7, 6), 7).requires_grad_()
    score = lambda y: y.gather(1, torch.tensor(classes)[:, None]).sum()
    y, first, maps = network(x, torch.relu)
    cams = {}
    for name, layer in [("first", first), ("maps", maps)]:
        (g,) = torch.autograd.grad(score(y), layer, retain_graph=True)
        cams[name] = (g.mean((2, 3), keepdim=True) * layer).sum(1).relu()
    (gradient,) = torch.autograd.grad(score(y), x)
    weights = numbers((5, 6), 5)[torch.tensor(classes)]
    (guided,) = torch.autograd.grad(score(network(x, Guided.apply)[0]), x)
    found = {
        "grad_cam_first": cams["first"],
        "grad_cam": cams["maps"],
        "cam": (weights[:, :, None, None] * maps).sum(1),
        "saliency": gradient.abs().amax(1),
        "input_gradient": gradient,
        "guided_backprop": guided,
    }
    flat = {name: [round(v, 12) for v in t.detach().flatten().tolist()] for name, t in found.items()}
    return {"classes": classes, "scores": [round(v, 12) for v in y.flatten().tolist()], **flat}


print(json.dumps([inspected(classes) for classes in ([0, 0, 0], [4, 1, 3], [2, 2, 1])]))
