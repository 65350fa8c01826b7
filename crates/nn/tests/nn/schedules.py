"""Makes schedules.pt: where PyTorch's schedulers stand after 5 steps, and the rates and momenta of the next 6.
`python schedules.py schedules.pt`. `python schedules.py --check FILE` loads what the test `schedules_go_on_in_pytorch`
writes into the file that KILN_SCHEDULES names, and goes on from it."""
import sys, torch, warnings
from torch.optim import lr_scheduler as lr

warnings.filterwarnings("ignore")
MADE = {
    "step": lambda o: lr.StepLR(o, 3, 0.5),
    "multistep": lambda o: lr.MultiStepLR(o, [2, 7, 7], 0.5),
    "exponential": lambda o: lr.ExponentialLR(o, 0.9),
    "constant": lambda o: lr.ConstantLR(o, 0.5, 7),
    "linear": lambda o: lr.LinearLR(o, 0.25, 1.0, 8),
    "polynomial": lambda o: lr.PolynomialLR(o, 9, 2.0),
    "cosine": lambda o: lr.CosineAnnealingLR(o, 7, 0.01),
    "restarts": lambda o: lr.CosineAnnealingWarmRestarts(o, 2, 2, 0.01),
    "onecycle": lambda o: lr.OneCycleLR(o, 0.3, 15),
    "cyclic": lambda o: lr.CyclicLR(o, 0.1, 0.9, 3),
    "lambda": lambda o: lr.LambdaLR(o, lambda e: 1 / (1 + e)),
    "multiplicative": lambda o: lr.MultiplicativeLR(o, lambda e: 1 - 0.1 / (1 + e)),
    "sequential": lambda o: lr.SequentialLR(o, [lr.LinearLR(o, 0.1, total_iters=4), lr.ExponentialLR(o, 0.9)], [4]),
    "chained": lambda o: lr.ChainedScheduler([lr.LinearLR(o, 0.5, total_iters=8), lr.ExponentialLR(o, 0.9)]),
}
METRICS = [3.0, 2.0, 2.5, 2.2, 2.1, 2.6, 2.4, 1.0, 1.5, 1.5, 1.5, 1.5]

def made(name):
    p = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))]
    o = torch.optim.SGD([{"params": p[:1], "lr": 0.8}, {"params": p[1:], "lr": 0.2}], momentum=0.5)
    for x in p: x.grad = torch.zeros_like(x)
    plateau = lambda o: lr.ReduceLROnPlateau(o, patience=1, factor=0.5, cooldown=1)
    return o, MADE.get(name, plateau)(o)

def steps(name, o, s, metrics):
    seen = []
    for m in metrics:
        o.step()
        s.step(m) if name == "plateau" else s.step()
        seen.append([g["lr"] for g in o.param_groups] + [o.param_groups[0]["momentum"]])
    return seen

if sys.argv[1] == "--check":
    given = torch.load(sys.argv[2], weights_only=True)
    for name in [*MADE, "plateau"]:
        o, s = made(name)
        o.load_state_dict(given[name]["optimizer"])
        s.load_state_dict(given[name]["scheduler"])
        seen = torch.tensor(steps(name, o, s, METRICS[5:11]), dtype=torch.float64)
        o, s = made(name)
        steps(name, o, s, METRICS[:5])
        wanted = torch.tensor(steps(name, o, s, METRICS[5:11]), dtype=torch.float64)
        print(name, (seen - wanted).abs().max().item())
        assert torch.allclose(seen, wanted, rtol=1e-12, atol=1e-12), (name, seen, wanted)
else:
    out = {}
    for name in [*MADE, "plateau"]:
        o, s = made(name)
        steps(name, o, s, METRICS[:5])
        # Copies, as a file holds them.
        state = {"scheduler": s.state_dict(), "optimizer": o.state_dict()}
        state["optimizer"]["param_groups"] = [dict(g) for g in state["optimizer"]["param_groups"]]
        if name in ("sequential", "chained"): state["scheduler"]["_schedulers"] = [dict(d) for d in state["scheduler"]["_schedulers"]]
        state["scheduler"] = {k: (list(v) if isinstance(v, list) else v) for k, v in state["scheduler"].items()}
        state["next"] = steps(name, o, s, METRICS[5:11])
        out[name] = state
    torch.save(out, sys.argv[1])
