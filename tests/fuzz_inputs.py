"""A valid file of every kind, and the commands that read it, for `test_fuzz` to mutate."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from netbench.cli import run
from netbench.explain.timeline import unfold
from netbench.plan.serial import plan_from_json
from netbench.records import FILE_NAME, read_run
from netbench.simulator import simulate
from tests.readings import LINUX_PING, iperf3
from tests.traced_run import run_of

LINK = {"one_way_delay": "30ms", "bandwidth": "100Mbit"}
IMPAIRED = LINK | {
    "jitter": {"deviation": "2ms", "distribution": "pareto", "correlation": "25%"},
    "loss": {"to_bad": "1%", "to_good": "30%", "in_bad": "50%"},
    "duplication": "1%", "corruption": "0.1%", "reordering": "1%", "queue": 1000,
}  # fmt: skip

SCENARIO: dict[str, Any] = {
    "name": "four", "title": "Four nodes", "notes": "Two regions.",
    "regions": ["A", "B"],
    "nodes": [
        {"region": "A", "count": 2, "device": "Box", "nic": "10Gbit"},
        {"region": "B", "device": "V100", "devices": 2, "nic": "1Gbit"},
    ],
    "network": {
        "sharing": "pair", "mtu": 1500, "inside": LINK,
        "links": [{"from": "A", "to": "B", **LINK}, {"from": "B", "to": "A", **IMPAIRED}],
    },
    "devices": {
        "Box": {
            "flops": {"default": "10TFLOPS"}, "memory": "16GB", "layer": "0.2ms",
            "optimizer_per_parameter": "0.5ns", "collective": {"default": "20ms"},
        },
        "V100": "builtin",
    },
    "workload": {
        "layers": 2, "hidden": 256, "heads": 4, "sequence": 512, "dtype": "fp16", "batch": 64,
        "micro_batch": 1, "embedding_parameters": "1M", "recomputation": True, "backend": "nccl",
    },
    "sweep": {
        "pipeline": 2, "variants": ["dtfm-scheduled", "zero3"], "seeds": [7], "layers": [2, 4],
        "batch": [64], "micro_batch": [1, 2], "networks": [{"name": "slow", **LINK}],
        "default": {"layers": [2]},
    },
}  # fmt: skip

NAMED: dict[str, Any] = SCENARIO | {
    "network": {"links": {"one_way_delay": [["1ms", "9ms"]] * 2, "bandwidth": [["1Gbit"] * 2] * 2}},
    "workload": {"model": "resnet18", "batch_per_replica": 8, "micro_batch": 4},
    "sweep": {"variants": ["ddp", "ddp-tree"], "replicas": [2, 4], "seeds": [1]},
}

PROFILE = SCENARIO["devices"]["Box"] | {"throughput": {"resnet18": 90.2}, "source": "Measured."}
INVENTORY = {
    "ssh": {"user": "ubuntu", "port": 22, "agent": False, "config": "none"},
    "hosts": [
        {"address": f"127.0.0.{i}", "name": f"n{i}", "data_address": "10.0.0.5", "sudo": True}
        for i in range(1, 4)
    ],
}
LINKS = "time,link,delay,rate,loss\n0s,A -> B,11ms,1.12Gbit,\n90s,A <-> B,,300Mbit,0.1%\n"
WIDE = "rtt_ms,a,b\na,,11\nb,12,\n"
LONG = "source,destination,rtt_ms,bandwidth_gbps,loss_percent\na,b,11,1.5,0.1\nb,a,12,1,\n"
SETTING = ("--layers=2", "--batch=64", "--micro-batch=1", "--network=slow", "--system=zero3")

Case = tuple[str, tuple[str, ...]]
"""File to mutate, and words of a command. A word with `=` is an option whose value mutates too."""

CASES: tuple[Case, ...] = (
    ("four.yaml", ("scenario", "validate", "four.yaml")),
    ("four.yaml", ("scenario", "show", "four.yaml", "--plot=new.svg")),
    ("four.yaml", ("run", "four.yaml", "--testbed=sim", "--all", "--seeds=1,2")),
    ("four.yaml", ("run", "four.yaml", "--dry-run", "--iterations=2", "--warmup=1", "--scale=10")),
    ("four.yaml", ("run", "four.yaml", "--testbed=sim", "--plot=new.svg", *SETTING)),
    ("four.yaml", ("run", "four.yaml", "--dry-run", "--command=python t.py", "--compute=virtual")),
    ("four.yaml", ("sweep", "four.yaml", "--vary=delay=1ms,2ms", "--vary=bandwidth=0.1x..2x:3")),
    ("four.yaml", ("sweep", "four.yaml", "--vary=layers=2,4", "--csv=new.csv", "--links=all")),
    ("four.yaml", ("require", "four.yaml", "--efficiency=0.5", "--system=dtfm-random")),
    ("four.yaml", ("explain", "four.yaml", "--json", *SETTING)),
    ("four.yaml", ("explain", "four.yaml", "--trace=new.json.gz", "--system=dtfm-random-1f1b")),
    ("four.yaml", ("schedule", "four.yaml", "--evaluations=3", "--seed=1", "-o", "new.json")),
    ("four.yaml", ("schedule", "four.yaml", "--layout=auto", "--evaluations=2", "--layers=2")),
    ("four.yaml", ("schedule", "four.yaml", "--scheduler=dtfm", "--evaluations=2")),
    ("four.yaml", ("schedule", "repair", "four.yaml", "--lost=node0", "--moves=1",
                   "--evaluations=3")),
    ("four.yaml", ("schedule", "compare", "four.yaml", "--schedulers=identity,dtfm", "--seeds=1",
                   "--evaluations=2", "--csv=new.csv")),
    ("four.yaml", ("net", "plan", "four.yaml", "--testbed=local", "--program")),
    ("four.yaml", ("net", "trace", "diurnal", "four.yaml", "--link=A -> B", "--low=30%",
                   "--steps=9", "--periods=2", "--period=1h", "--peak=1s")),
    ("four.yaml", ("net", "trace", "outage", "four.yaml", "--link=A", "--up=1s", "--down=1s",
                   "--until=9s", "--seed=1")),
    ("four.yaml", ("collective", "all-reduce", "sharded-ps", "--nodes=3", "--bytes=1MiB,2MiB",
                   "--scenario=four.yaml", "--testbed=sim", "--backend=nccl")),
    ("named.yaml", ("scenario", "show", "named.yaml")),
    ("named.yaml", ("run", "named.yaml", "--testbed=sim", "--models=resnet18", "--replicas=2")),
    ("named.yaml", ("sweep", "named.yaml", "--vary=delay=1ms..9ms:3")),
    ("profile.yaml", ("run", "profiled.yaml", "--testbed=sim")),
    ("hosts.yaml", ("net", "inventory", "hosts.yaml")),
    ("hosts.yaml", ("net", "plan", "four.yaml", "--inventory", "hosts.yaml", "--offline")),
    ("links.csv", ("net", "trace", "show", "four.yaml", "links.csv")),
    ("iperf3.json", ("net", "import", "iperf3.json", "--symmetric", "--nodes=1")),
    ("wide.csv", ("net", "import", "wide.csv", "--inside-delay=1ms", "--inside-bandwidth=1Gbit",
                  "--nodes=2", "--rename=a=c", "--delay-unit=ms")),
    ("long.csv", ("net", "import", "long.csv", "--round-trip", "--csv=new.csv", "--name=x")),
    ("ping.txt", ("net", "import", "a,b=ping.txt", "--jitter")),
    ("placed.json", ("run", "four.yaml", "--testbed=sim", "--placement=placed.json,default")),
    ("placed.json", ("schedule", "repair", "placed.json", "--scenario=four.yaml", "--moves=1",
                     "--evaluations=3", "--json")),
    ("plan.json", ("explain", "plan.json")),
    ("run/records.jsonl", ("table", "four", "--run=run", "--format=csv")),
    ("run/records.jsonl", ("table", "run", "--plot=new.svg")),
    ("run/records.jsonl", ("run", "four.yaml", "--testbed=sim", "--resume=run")),
    ("traced/traces/trace.json.gz", ("trace", "diff", "traced", "-o", "new.json")),
    ("traced/records.jsonl", ("trace", "diff", "traced", "--plot=new.svg")),
    ("four.yaml", ("collective", "all-gather", "--nodes=4", "--bytes=1MiB", "--delay=1ms",
                   "--rate=1Gbit", "--testbed=sim", "--mtu=1500", "--sharing=nic")),
    ("four.yaml", ("scenario", "generate", "--regions=2", "--devices=8", "--seed=1", "--mixed")),
)  # fmt: skip


def write_inputs(folder: Path) -> None:
    """Write the valid files, some of them with netbench."""
    profiled = SCENARIO | {"devices": {"Box": "profile.yaml"}}
    documents = {
        "four.yaml": SCENARIO, "named.yaml": NAMED, "profile.yaml": PROFILE,
        "hosts.yaml": INVENTORY, "profiled.yaml": profiled, "iperf3.json": iperf3(),
    }  # fmt: skip
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1))
    texts = {"links.csv": LINKS, "wide.csv": WIDE, "long.csv": LONG, "ping.txt": LINUX_PING}
    for name, text in texts.items():
        (folder / name).write_text(text)
    scenario, results = str(folder / "four.yaml"), str(folder / "results")
    assert run(["run", scenario, "--testbed", "sim", "--results", results]) == 0
    placed = str(folder / "placed.json")
    assert run(["schedule", scenario, "--evaluations", "3", "-o", placed]) == 0
    (recorded,) = (folder / "results").glob(f"*/{FILE_NAME}")
    shutil.move(recorded.parent, folder / "run")
    plan_text = json.dumps(next(iter(read_run(folder / "run").plans.values())))
    (folder / "plan.json").write_text(plan_text)
    simulation = unfold(simulate(plan := plan_from_json(plan_text), whole=True))
    traced = run_of(folder, plan, simulation.iteration_s, simulation.slices)
    shutil.move(traced, folder / "traced")
    (trace,) = (folder / "traced" / "traces").iterdir()
    trace.rename(trace.with_name("trace.json.gz"))
