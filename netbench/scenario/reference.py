"""Write the reference page of scenario files from their JSON schema."""

from collections.abc import Iterator, Mapping
from typing import Any

from netbench.scenario.schema import scenario_json_schema

Schema = Mapping[str, Any]

HEAD = """# Scenario files: reference

Every key of a scenario file, in the order of the JSON schema that `netbench scenario schema` prints
for editors. `netbench scenario reference` writes this page. [scenarios](scenarios.md) explains the
scenarios that come with netbench.

A quantity is text with a unit (`11ms`, `1.12Gbit`, `16GB`, `55TFLOPS`, `0.1%`). A count is a number
or text with a prefix (`64M`). Keys in bold are required.
"""

TITLES = {
    "ScenarioForm": "The file",
    "NodesForm": "`nodes`",
    "NetworkForm": "`network`",
    "LinkForm": "`network.inside`",
    "PairForm": "`network.links`, as a list",
    "MatrixForm": "`network.links`, as matrices",
    "JitterForm": "`jitter`, with its distribution",
    "BurstsForm": "`loss`, in bursts",
    "TcpForm": "`tcp`",
    "DeviceForm": "`devices`, a profile",
    "WorkloadForm": "`workload`, a GPT",
    "ModelForm": "`workload`, a model by name",
    "OwnWorkloadForm": "`workload`, a model by its parameters",
    "SweepForm": "`sweep`",
    "MapsForm": "`sweep.maps`",
    "SweepNetworkForm": "`sweep.networks`",
    "NamedModelForm": "`sweep.models`, by name",
    "OwnModelForm": "`sweep.models`, by their parameters",
    "PeersForm": "`sweep.peers`",
    "DefaultForm": "`sweep.default`",
    "PricesForm": "`prices`",
    "PlaceForm": "`prices.regions`",
    "MachinePriceForm": "`prices.regions`, `machines`",
    "EgressForm": "`prices.egress`",
}
"""Form -> heading of its section, in the order of the page."""


LINKS = ("PairForm", "SweepNetworkForm")
"""Forms with the keys of a link and others."""


def reference_page() -> str:
    """Return the page as markdown, with a table per section of the file."""
    schema = scenario_json_schema()
    forms = {"ScenarioForm": schema, **schema["$defs"]}
    if unknown := forms.keys() ^ TITLES.keys():
        raise KeyError(f"sections without a heading, or headings without a section: {unknown}")
    parts, link = [HEAD], forms["LinkForm"]
    for name, title in TITLES.items():
        form, more = forms[name], ""
        if name in LINKS:
            own = {k: v for k, v in form["properties"].items() if k not in link["properties"]}
            form, more = form | {"properties": own}, f" Also all keys of {_link('LinkForm')}."
        rows = "\n".join(_rows(form))
        head = "| key | value | default | meaning |\n|---|---|---|---|\n"
        parts.append(f"## {title}\n\n{form['description']}{more}\n\n{head}{rows}\n")
    return "\n".join(parts)


def _rows(form: Schema) -> Iterator[str]:
    needed = form.get("required", ())
    for key, value in form["properties"].items():
        name = f"**`{key}`**" if key in needed else f"`{key}`"
        default = value.get("default")
        shown = "" if default is None or isinstance(default, dict | list) else _plain(default)
        yield f"| {name} | {_kind(value)} | {shown} | {value['description']} |"


def _plain(value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text}`" if text else ""


def _kind(value: Schema, example: str = "") -> str:
    """Describe the values of a key: alternatives, choices, an example. example: of the key."""
    example = example or next(iter(value.get("examples", ())), "")
    shown = f"e.g. `{example}`" if example else ""
    if "$ref" in value:
        return _link(value["$ref"].rpartition("/")[2])
    choices = value.get("anyOf") or value.get("oneOf")
    if choices:
        known = [choice for choice in choices if choice.get("type") != "null"]
        kinds = dict.fromkeys(_kind(choice, example) for choice in known)
        return " or ".join(kinds)
    if "enum" in value or "const" in value:
        return ", ".join(f"`{choice}`" for choice in value.get("enum", [value.get("const")]))
    kind = value.get("type")
    if kind == "array":
        return shown or f"list of: {_kind(value['items'])}"
    if kind == "object":
        values = value.get("additionalProperties")
        return f"by name: {_kind(values, example)}" if isinstance(values, dict) else "mapping"
    if kind == "boolean":
        return "`true`, `false`"
    if isinstance(kind, list):
        return shown
    return shown or {"integer": "whole number", "number": "number"}.get(str(kind), "text")


def _link(form: str) -> str:
    title = TITLES[form]
    anchor = "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")
    return f"[{title}](#{anchor})"
