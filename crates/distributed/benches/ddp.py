"""A rank of PyTorch's side of the benchmark `ddp`.

ddp.py <mlp|cnn> <start> <steps before> <steps>
"""

import pathlib
import sys
import time

import torch
from torch import nn

sys.path.append(str(pathlib.Path(__file__).parents[3] / "benches" / "peers"))
from serving import read_start

name, path, before, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
if name == "mlp":
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
else:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 8 * 8, 10),
    )
state, inputs = read_start(path)
model.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
x, y = (torch.from_numpy(t).chunk(world)[rank].clone() for t in inputs)
model = nn.parallel.DistributedDataParallel(model)
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for step in range(before + steps):
    begun = time.perf_counter()
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    loss = loss.item()
    seconds = time.perf_counter() - begun
    if rank == 0 and (step < 2 or step >= before):
        print(loss if step < 2 else seconds)
torch.distributed.destroy_process_group()
