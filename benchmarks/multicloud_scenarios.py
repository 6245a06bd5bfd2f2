"""Write `scenarios/multicloud-*.yaml` from the files in results/published/multicloud/.

    python -m benchmarks.multicloud_scenarios [--check]

Only inputs are read of the experiments that are held out: machines, model, batch, date. Throughput
under Hivemind is that of the calibration part (`throughput_local`), or that of one machine alone
with the extra time of a step on an A10. A measured TCP throughput is payload. The rate of a link is
that on the wire, so that one TCP stream carries what was measured.
"""

import csv
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
DATA = ROOT / "results" / "published" / "multicloud"
SCENARIOS = ROOT / "scenarios"

WIRE = 1514 / 1448
"""Bytes on the wire over payload: Ethernet, IPv4 and TCP with timestamps, MTU 1500."""

TENSORS = {
    "RN18": 62, "RN50": 161, "RN152": 467, "WRN101_2": 314, "CONV": 344, "RBase": 202,
    "RLrg": 394, "RXLM": 394, "WhisperTiny": 166, "WhisperBase": 244, "WhisperSmall": 478,
}  # fmt: skip
"""Trainable tensors. Source: torchvision's and Hugging Face's definitions of the models."""

COLUMNS = {
    "gc_us_t4": "US", "gc_eu_t4": "EU", "gc_asia_t4": "ASIA", "gc_aus_t4": "AUS",
    "aws_us_t4": "AWS", "azure_us_t4": "Azure", "lambda_us_a10": "Lambda",
    "onprem_eu_rtx8000": "OnPrem", "onprem_eu_dgx2": "OnPrem",
}  # fmt: skip
"""Columns of experiments.csv, and the regions of the scenarios."""

DEVICES = {"Lambda": "A10"}
PROVIDERS = {"AWS": "AWS", "Azure": "Azure", "Lambda": "Lambda", "OnPrem": "own"}
CONTINENTS = {"EU": "EU", "ASIA": "ASIA", "AUS": "Oceania", "OnPrem": "EU"}
"""By region, where they differ from T4, GC and NA."""

ON_PREM_NIC_GBPS = 5.37
"""Mean of 80 streams from on-prem to Google's EU, links.csv."""

A10_HOST, T4_HOST = 0.71, 1.0
"""Cost of averaging for the CPU, fitted by `benchmarks/fit_swarm.py`. On-prem machines have 40 to
80 cores, and are assumed to be like Lambda's with 30. AWS's and Azure's are assumed to be like
Google's."""

Rows = list[dict[str, str]]


def rows(name: str) -> Rows:
    """Return a file of the data."""
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@dataclass(frozen=True, kw_only=True)
class Family:
    """A scenario file. experiments: prefixes of their names, each followed by a number. places:
    name in links.csv of each region. machines: providers and scope of prices by region."""

    name: str
    title: str
    experiments: Sequence[str]
    places: Mapping[str, str]
    onprem: str = ""
    prices: str = "table 1"
    date: str = ""
    notes: str = field(default="")


GC = {"US": "GC US", "EU": "GC EU", "ASIA": "GC ASIA", "AUS": "GC AUS"}
RTX, DGX = "on-prem RTX8000", "on-prem DGX-2"
US_EF = "GC US (E, F)"
FAMILIES = (
    Family(name="a", title="A: 2 to 8 T4 in one zone", experiments=["A-"],
           places={"US": "GC US"}),
    Family(name="whisper", title="Whisper on 2 to 8 T4 in one zone", experiments=["W-"],
           places={"US": "GC US"}),
    Family(name="bc", title="B and C: T4 on two to four continents", experiments=["B-", "C-"],
           places=GC, prices="nb:04"),
    Family(name="d-2", title="D-2: T4 of Google and AWS", experiments=["D-2"],
           places={"US": "GC US-west1", "AWS": "AWS US-west-2"}),
    Family(name="d-3", title="D-3: T4 of Google and Azure", experiments=["D-3"],
           places={"US": "GC US-west1", "Azure": "Azure US-south-2"}),
    *(
        Family(name=f"{letter.lower()}-{where.lower()}",
               title=f"{letter}-{where}: {device} on premises with {region} machines",
               experiments=[f"{letter}-{where}-"], onprem=device, prices="nb:04",
               places={key: place, "OnPrem": source})
        for letter, device, source in (("E", "RTX8000", RTX), ("F", "DGX2", DGX))
        for where, region, key, place in (
            ("A", "EU", "EU", "GC EU"), ("B", "US", "US", US_EF), ("C", "Lambda", "Lambda",
                                                                        "Lambda US"),
        )
    ),
    Family(name="a10", title="2 to 8 A10 in one region", experiments=["A10-"],
           places={"Lambda": "Lambda US"}),
    Family(name="a10-april", title="2 to 8 A10, a month earlier", experiments=["A10-"],
           places={"Lambda": "Lambda US"}, date="-april",
           notes="Small models were limited by data loading."),
)  # fmt: skip


def throughputs() -> dict[str, dict[str, float]]:
    """Return samples per second under Hivemind, by device and model."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows("a_series"):
        if row["metric"] != "throughput_local":
            continue
        series, tbs = row["experiment"], row["tbs"]
        device = {"A10-2": "A10", "A10-2-april": "A10-april"}.get(series, "T4")
        if series == "A10-2-repeat" or (device != "T4" and tbs != "32768"):
            continue
        found[device, row["model"]].append(float(row["value"]) / int(row["n_gpus"]))
    speeds: dict[str, dict[str, float]] = defaultdict(dict)
    for (device, model), values in found.items():
        speeds[device][model] = statistics.fmean(values)
    extra_s = extra_step_s()
    for row in rows("baselines"):
        device = {"RTX8000": "RTX8000", "DGX-2 (8xV100)": "DGX2"}.get(row["device"], "")
        if device:
            step, model = int(row["samples_per_step"]), row["model"]
            alone_s = step / float(row["throughput_wall_sps"])
            speeds[device][model] = step / (alone_s + extra_s[model])
    return speeds


def extra_step_s() -> dict[str, float]:
    """Return the extra time of a step under Hivemind on an A10, seconds. RXLM's baseline at 32768
    was limited by data loading, and is left out."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows("hivemind_penalty"):
        stalled = row["model"] == "RXLM" and row["tbs"] == "32768"
        if row["device"] == "A10" and not stalled:
            found[row["model"]].append(float(row["extra_step_time_ms"]) / 1e3)
    return {model: statistics.fmean(values) for model, values in found.items()}


def chosen(family: Family) -> Rows:
    """Return the experiments of a family that trained with Hivemind."""
    return [
        row
        for row in rows("experiments")
        if any(
            (
                row["experiment"].startswith(prefix)
                and row["experiment"].removeprefix(prefix).removesuffix(family.date).isdigit()
            )
            or row["experiment"] == prefix
            for prefix in family.experiments
        )
        and row["experiment"].endswith(family.date)
        and (family.date or not row["experiment"].endswith("-april"))
        and int(row["peers"]) > 1
    ]


def nodes_of(row: Mapping[str, str]) -> dict[str, int]:
    """Return the machines of an experiment by region."""
    return {COLUMNS[key]: int(row[key]) for key in COLUMNS if int(row[key])}


def variant_of(row: Mapping[str, str]) -> str:
    """Return the system: 20 s of matchmaking where it is not known (8 May), when all epochs were
    longer."""
    return f"hivemind-swarm-m{row['matchmaking_time_s'] or 20}"


def scenario_text(family: Family) -> str:
    """Return the scenario file of a family."""
    found = chosen(family)
    models = list(dict.fromkeys(row["model"] for row in found))
    regions = list(family.places)
    machines = {region: max(nodes_of(row).get(region, 0) for row in found) for region in regions}
    default = statistics.mode(variant_of(row) for row in found)
    lines = [
        "# Written by benchmarks/multicloud_scenarios.py from results/published/multicloud/.",
        f"name: multicloud-{family.name}",
        f'title: "{family.title}"',
    ]
    lines += [f"notes: {family.notes}"] if family.notes else []
    lines += [f"regions: [{', '.join(regions)}]", "", "nodes:"]
    for region in regions:
        device = device_of(family, region)
        nic = _rate(nic_gbps(family.places[region]))
        lines.append(
            f"  - {{region: {region}, count: {machines[region]}, device: {device}, nic: {nic}}}"
        )
    lines += [
        "",
        "network: # one TCP stream per pair and direction, limited by its window",
        "  sharing: nic",
        "  inside:",
    ]
    lines += [
        f"    {region}: {_link(family.places[region], family.places[region])}" for region in regions
    ]
    links = [
        f"    - {{from: {a}, to: {b}, {_link(family.places[a], family.places[b])[1:]}"
        for a in regions
        for b in regions
        if a != b
    ]
    lines += ["  links:", *links] if links else []
    lines += ["", "devices: # throughput: samples/s under Hivemind, averaging excluded"]
    speeds = throughputs()
    for device in dict.fromkeys(device_of(family, region) for region in regions):
        rates = speeds[device + family.date]
        listed = ", ".join(f"{model}: {rates[model]:.5g}" for model in models)
        host = T4_HOST if device == "T4" else A10_HOST
        lines += [f"  {device}:", f"    throughput: {{{listed}}}", f"    host_factor: {host}"]
        lines += ["    step: 8"] if device == "DGX2" else []
        lines += ["    source: results/published/multicloud/"]
    sizes = {row["model"]: row for row in rows("models")}
    lines += ["", "workload:"]
    forms = [model_form(sizes[model], found) for model in models]
    lines += [f"  {part}" for part in forms[0]]
    lines += ["", "sweep:", f"  variants: [{default}]", "  models:"]
    lines += [f"    - {{{', '.join(form)}}}" for form in forms]
    lines += ["  peers:", *peer_lines(found, default, models)]
    lines += price_lines(family, regions)
    return "\n".join(lines) + "\n"


def device_of(family: Family, region: str) -> str:
    """Return the type of device in a region."""
    return family.onprem if region == "OnPrem" else DEVICES.get(region, "T4")


def model_form(row: Mapping[str, str], found: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the keys of a model."""
    batches = [int(each["tbs"]) for each in found if each["model"] == row["model"]]
    sample = row["ingress_bytes_per_sample"] or "0"
    return [
        f"model: {row['model']}",
        f"parameters: {row['params']}",
        f"tensors: {TENSORS[row['model']]}",
        f"batch: {max(batches)}",
        f"micro_batch: {row['samples_per_step_per_gpu']}",
        f"sample: {sample}B",
    ]


def peer_lines(found: Rows, default: str, models: Sequence[str]) -> list[str]:
    """Return a line for each set of machines; more where models differ in batch or matchmaking."""
    batches: dict[tuple[str, str], list[str]] = defaultdict(list)
    by_key = {(row["experiment"], row["model"]): row for row in found}
    for row in found:
        batches[row["experiment"], row["model"]].append(row["tbs"])
    groups: dict[tuple[str, str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (experiment, model), listed in batches.items():
        ordered = tuple(sorted(listed, key=int))
        groups[experiment, variant_of(by_key[experiment, model]), ordered].append(model)
    lines, used = [], set()
    for (experiment, variant, sizes), members in groups.items():
        name = experiment if experiment not in used else f"{experiment}-{members[0]}"
        used.add(experiment)
        machines = nodes_of(by_key[experiment, members[0]])
        parts = [f"name: {name}", f"nodes: {_mapping(machines)}"]
        parts += [f"models: [{', '.join(members)}]"] if members != list(models) else []
        parts += [f"batch: [{', '.join(sizes)}]"]
        parts += [f"variants: [{variant}]"] if variant != default else []
        lines.append(f"    - {{{', '.join(parts)}}}")
    return lines


def price_lines(family: Family, regions: Sequence[str]) -> list[str]:
    """Return prices. Machines on premises cost nothing here: they are not rented."""
    found = rows("prices")
    lines = ["", "prices: # $ per hour and GB, April and May 2023", "  regions:"]
    providers: dict[str, None] = {}
    for region in regions:
        provider, continent = PROVIDERS.get(region, "GC"), CONTINENTS.get(region, "NA")
        providers[provider] = None
        offers = machine_offers(family, provider, region)
        price = _mapping({device_of(family, region): _mapping(offers)})
        lines.append(
            f"    {region}: {{provider: {provider}, continent: {continent}, machines: {price}}}"
        )
    lines.append("  egress:")
    names = {
        "between zones of a region": "zone", "between regions, US": "region",
        "between continents": "continent", "any to or from Oceania": "oceania",
    }  # fmt: skip
    for provider in providers:
        usd = {
            names[row["scope"]]: row["usd"]
            for row in found
            if row["provider"] == provider and row["item"] == "egress" and row["scope"] in names
        } or {"region": "0", "continent": "0"}
        lines.append(f"    {provider}: {_mapping(usd)}")
    return [*lines, "  data_loading: 0.01"]


def machine_offers(family: Family, provider: str, region: str) -> dict[str, str]:
    """Return the prices of a machine with one GPU, by kind: from the paper, or from its notebook,
    which has them by region."""
    if provider == "own":
        return {"on_demand": "0"}
    paper = family.prices == "table 1" or provider == "Lambda"
    sources = ("paper table 1", "paper sec. 3") if paper else ("nb:04",)
    return {
        row["kind"]: row["usd"]
        for row in rows("prices")
        if (row["provider"], row["item"]) == (provider, "vm")
        and row["instance"].startswith("1x")
        and row["source"].startswith(sources)
        and (paper or row["scope"] == region)
    }


def nic_gbps(place: str) -> float:
    """Return the limit of a machine: one stream to another in its zone."""
    return ON_PREM_NIC_GBPS if place.startswith("on-prem") else float(_measured(place, place)[0])


def _measured(a: str, b: str) -> tuple[float, float]:
    """Return Gbit/s and round trip in ms of one stream as in the paper's tables; else backwards."""
    found = [row for row in rows("links") if row["streams"] == "1" and row["throughput_gbps"]]
    for from_, to in ((a, b), (b, a)):
        matches = [row for row in found if (row["from"], row["to"]) == (from_, to)]
        printed = [row for row in matches if row["printed_in"].startswith(("table", "sec."))]
        if best := (printed or matches):
            return float(best[0]["throughput_gbps"]), float(best[0]["rtt_ms"])
    raise SystemExit(f"links.csv has no stream between {a} and {b}")


def _link(a: str, b: str) -> str:
    if a == b and a.startswith("on-prem"):
        return "{one_way_delay: 0ms} # one machine"
    gbps, rtt_ms = _measured(a, b)
    return f"{{one_way_delay: {rtt_ms / 2:.5g}ms, bandwidth: {_rate(gbps)}}}"


def _rate(payload_gbps: float) -> str:
    return f"{payload_gbps * WIRE:.4g}Gbit"


def _mapping(values: Mapping[str, object]) -> str:
    return "{" + ", ".join(f"{key}: {value}" for key, value in values.items()) + "}"


def texts() -> dict[Path, str]:
    """Return the text of every file."""
    return {
        SCENARIOS / f"multicloud-{family.name}.yaml": scenario_text(family) for family in FAMILIES
    }


def main() -> int:
    """Write the files, or with --check report those that differ."""
    differ = [
        path
        for path, text in texts().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path in differ:
        if "--check" in sys.argv:
            print(f"{path} is out of date; run python -m benchmarks.multicloud_scenarios")
        else:
            path.write_text(texts()[path], encoding="utf-8")
            print(f"{path} written")
    return 1 if differ and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
