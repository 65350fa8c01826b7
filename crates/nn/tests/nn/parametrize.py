"""Makes parametrize.json: weights, gradients and states of PyTorch's weight and spectral norm. `python parametrize.py`."""
import json, torch
from torch.nn import Conv2d, ConvTranspose1d, Linear
from torch.nn.functional import normalize
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

torch.set_default_dtype(torch.float64)

def waves(n, shape):
    return (torch.arange(shape.numel()) * 0.37 + n).sin().reshape(shape)

def rounded(t):
    return [round(x, 12) for x in t.detach().flatten().tolist()]

def flat(named):
    return {n: [list(t.shape), rounded(t)] for n, t in named}

cases = []
for make in [lambda: Linear(3, 2), lambda: Conv2d(2, 3, 2), lambda: ConvTranspose1d(2, 3, 2)]:
    for norm in [0, 1, None, "spectral"]:
        m = make()
        m.weight.data = waves(0, m.weight.shape)
        m.bias.data = waves(1, m.bias.shape)
        if norm == "spectral":
            m = spectral_norm(m)
            own = m.parametrizations.weight[0]
            own._u.copy_(normalize(waves(3, own._u.shape), dim=0))
            own._v.copy_(normalize(waves(4, own._v.shape), dim=0))
        else:
            m = weight_norm(m, dim=norm)
            m.parametrizations.weight.original0.data *= 1.5
        case = {"layer": type(m).__name__.removeprefix("Parametrized"), "norm": norm, "state": flat(m.state_dict().items()), "reads": []}
        for training in [False, True, True] if norm == "spectral" else [False]:
            m.train(training).zero_grad()
            w = m.weight
            (w * waves(5, w.shape)).sum().backward()
            grads = [(n, p.grad) for n, p in m.named_parameters() if p.grad is not None]
            case["reads"].append({"weight": rounded(w), "gradients": flat(grads), "state": flat(m.state_dict().items())})
        cases.append(case)
json.dump(cases, open("parametrize.json", "w"))
