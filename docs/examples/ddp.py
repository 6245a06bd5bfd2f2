"""Data parallel training that reports its iterations to netbench: docs/own-trainer.md."""

import json
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")  # from RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
model = DistributedDataParallel(torch.nn.Linear(512, 512))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for iteration in range(int(os.environ["NETBENCH_ITERATIONS"])):
    start_s = time.perf_counter()
    loss = model(torch.randn(8, 512)).square().mean()
    optimizer.zero_grad()
    loss.backward()  # all-reduces 1 MiB of gradients
    optimizer.step()
    report = {"iteration_s": time.perf_counter() - start_s, "loss": loss.item()}
    print(json.dumps({"netbench": "iteration", "iteration": iteration, **report}))
dist.destroy_process_group()
