"""Runs PyTorch's GradScaler over steps of which some overflow: writes `scaler.json` beside this file."""

import json
import pathlib

import torch

STEPS, OVERFLOWS = 24, (0, 5, 6, 15)


def factors(step):
    """What the loss multiplies the parameters by; not finite where the step is to overflow."""
    c = torch.tensor([0.5, -0.25, 1.5, -2.0]) * (1 + step % 3)
    if step in OVERFLOWS:
        c[step % 4] = (float("inf"), float("nan"))[step % 2]
    return c


def run(make):
    w = torch.nn.Parameter(torch.tensor([0.3, -0.7, 1.1, 0.2]))
    optimizer = make([w])
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
    scales, values = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = ((w * factors(step)) + 0.1 * w * w).sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        values.append(w.detach().tolist())
    return {"scales": scales, "values": values, "state": scaler.state_dict()}


runs = {
    "SGD": run(lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9)),
    "AdamW": run(lambda p: torch.optim.AdamW(p, lr=0.01)),
}
path = pathlib.Path(__file__).with_suffix(".json")
path.write_text(json.dumps({"steps": STEPS, "overflows": OVERFLOWS, "runs": runs}) + "\n")
