"""Makes reference.json, what PyTorch does: `python reference.py reference.json`.

`rules`: a class, its arguments, three parameters behind steps 1 and 6 of given gradients, and the state of the first
behind step 6. In step 3 the second parameter has no gradient and the rate is halved.
`lbfgs`: its arguments, and the parameters behind each of 4 steps down (or up the negative of) a chain of Rosenbrock's
valleys.
`schedules`: the rates, and the momentum where it changes, of 12 epochs.
"""
import json, sys, torch
from torch.optim import lr_scheduler as lr

torch.set_default_dtype(torch.float64)
SHAPES = [(2, 3), (3,), ()]

def values(seed, shape):
    """The numbers of main.rs."""
    mask = (1 << 64) - 1
    state, out = (seed * 0x9E3779B97F4A7C15) & mask | 1, []
    for _ in range(torch.Size(shape).numel()):
        state ^= (state << 13) & mask
        state ^= state >> 7
        state ^= (state << 17) & mask
        out.append((state >> 11) / (1 << 52) - 1.0)
    return torch.tensor(out).reshape(shape)

def parameters():
    return [torch.nn.Parameter(values(1 + i, s)) for i, s in enumerate(SHAPES)]

def read(tensors):
    return [float(f"{x:.12g}") for t in tensors for x in torch.as_tensor(t).detach().double().flatten().tolist()]

def rule(name, **options):
    params = parameters()
    opt = getattr(torch.optim, name)(params, **options)
    seen = []
    for step in range(1, 7):
        if step == 3:
            for g in opt.param_groups: g["lr"] /= 2
        for i, p in enumerate(params):
            p.grad = None if (step, i) == (3, 1) else values(10 * step + i + 1, p.shape)
        opt.step()
        if step in (1, 6): seen.append(read(params))
    state = {k: read([v]) for k, v in opt.state[params[0]].items() if v is not None}
    return {"rule": name, "options": options, "seen": seen, "state": state}

def rules():
    cases = {
        "SGD": [{}, dict(momentum=0.9), dict(momentum=0.9, dampening=0.3), dict(momentum=0.9, nesterov=True)],
        "Adam": [dict(betas=(0.8, 0.95)), dict(amsgrad=True), dict(decoupled_weight_decay=True)],
        "AdamW": [dict(betas=(0.8, 0.95)), dict(amsgrad=True)],
        "RMSprop": [{}, dict(momentum=0.7), dict(centered=True), dict(alpha=0.9, momentum=0.7, centered=True)],
        "Adagrad": [{}, dict(lr_decay=0.1, initial_accumulator_value=0.5)],
        "Adadelta": [{}, dict(rho=0.7, eps=1e-3)],
        "Adafactor": [{}, dict(beta2_decay=-0.5, d=1.5), dict(eps=(1e-2, 0.5))],
        "Adamax": [{}, dict(betas=(0.8, 0.6), eps=1e-2)],
        "ASGD": [{}, dict(lambd=0.1, alpha=0.5, t0=2.0)],
        "NAdam": [{}, dict(momentum_decay=0.1), dict(decoupled_weight_decay=True)],
        "RAdam": [{}, dict(betas=(0.8, 0.5)), dict(betas=(0.9, 0.99), decoupled_weight_decay=True)],
        "Rprop": [{}, dict(etas=(0.3, 1.7), step_sizes=(0.02, 0.1))],
    }
    for name, all in cases.items():
        for options in all:
            for also in [{}, {"maximize": True}] + [{"weight_decay": 0.1}] * (name != "Rprop"):
                yield rule(name, lr=0.1, **options, **also)

def lbfgs(**options):
    params = parameters()
    opt = torch.optim.LBFGS(params, **options)
    def closure():
        opt.zero_grad()
        x = torch.cat([p.flatten() for p in params])
        loss = (10 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
        if options.get("maximize"): loss = -loss
        loss.backward()
        return loss
    seen = []
    for _ in range(4):
        opt.step(closure)
        seen.append(read(params))
    return {"options": options, "seen": seen, "func_evals": opt.state[params[0]]["func_evals"]}

def schedule(make):
    opt = torch.optim.SGD(parameters(), lr=0.8, momentum=0.5)
    s = make(opt)
    steps = s if isinstance(s, list) else [s]
    rates, momentum = [], []
    for _ in range(12):
        rates.append(opt.param_groups[0]["lr"])
        momentum.append(opt.param_groups[0]["momentum"])
        opt.step()
        for s in steps: s.step()
    return {"rates": read(rates), "momentum": read(momentum)}

def cyclic(**options):
    return lambda o: lr.CyclicLR(o, 0.1, 0.9, 3, **options)

def warmup(f):
    return lambda o: lr.LambdaLR(o, f)

from math import cos, pi
schedules = {
    "multiplicative": lambda o: lr.MultiplicativeLR(o, lambda e: 1 - 0.1 * e / (e + 1)),
    "polynomial": lambda o: lr.PolynomialLR(o, 6, 2.0),
    "polynomial of default": lambda o: lr.PolynomialLR(o),
    "triangular": cyclic(),
    "triangular2": cyclic(mode="triangular2", step_size_down=2),
    "exp_range": cyclic(mode="exp_range", gamma=0.9, base_momentum=0.6, max_momentum=0.7),
    "of cycle": cyclic(scale_fn=lambda x: 1 / (5 * x) ** 0.5, scale_mode="cycle", cycle_momentum=False),
    "of iterations": cyclic(scale_fn=lambda x: 1 / (1 + x), scale_mode="iterations", cycle_momentum=False),
    "chained": lambda o: [lr.PolynomialLR(o, 6, 2.0), lr.MultiplicativeLR(o, lambda e: 0.9)],
    "sequential": lambda o: lr.SequentialLR(
        o, [lr.LinearLR(o, 0.1, total_iters=4), lr.PolynomialLR(o, 6)], [4]),
    # transformers.get_{constant,linear,cosine}_schedule_with_warmup
    "constant with warm-up": warmup(lambda s: s / 4 if s < 4 else 1.0),
    "linear with warm-up": warmup(lambda s: s / 4 if s < 4 else max(0.0, (10 - s) / (10 - 4))),
    "cosine with warm-up": warmup(
        lambda s: s / 4 if s < 4 else max(0.0, 0.5 * (1 + cos(pi * 0.5 * 2 * (s - 4) / (10 - 4))))),
}
WOLFE = dict(line_search_fn="strong_wolfe")
lines = {
    "rules": list(rules()),
    "lbfgs": [lbfgs(**o, max_iter=5) for o in [
        dict(lr=0.1), dict(lr=0.1, history_size=2, max_eval=4), WOLFE, dict(history_size=3, maximize=True, **WOLFE)]],
    "schedules": [dict(name=name, **schedule(make)) for name, make in schedules.items()],
}
with open(sys.argv[1], "w") as f:
    parts = (f'"{k}": [\n' + ",\n".join(json.dumps(c) for c in v) + "\n]" for k, v in lines.items())
    f.write("{" + ",\n".join(parts) + "}\n")
