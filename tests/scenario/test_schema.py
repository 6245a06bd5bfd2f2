"""The JSON schema of scenario files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from netbench.scenario.reference import reference_page
from netbench.scenario.schema import scenario_json_schema
from netbench.scenario.sharing import SHARING


def definitions() -> dict[str, Any]:
    schema = scenario_json_schema()
    return {"ScenarioForm": schema, **schema["$defs"]}


def test_the_schema_is_json_and_names_its_dialect() -> None:
    """Editors look for `$schema`."""
    schema = json.loads(json.dumps(scenario_json_schema(), allow_nan=False))
    assert schema["$schema"].startswith("https://json-schema.org/")
    assert set(schema["required"]) == {"regions", "nodes", "network", "workload"}


def test_every_key_has_a_description() -> None:
    """Editors show it, and so does the reference page."""
    found = [
        (form, key, value.get("description", ""))
        for form, schema in definitions().items()
        for key, value in schema["properties"].items()
    ]
    assert len(found) > 100
    assert [(form, key) for form, key, text in found if len(text) < 10] == []


def test_a_link_has_either_a_delay_or_a_round_trip_time() -> None:
    """Editors accept one of the two."""
    link = definitions()["LinkForm"]
    assert link["oneOf"] == [{"required": ["one_way_delay"]}, {"required": ["rtt"]}]
    assert "one_way_delay" not in link["required"]


def test_the_reference_page_is_that_of_this_schema() -> None:
    """`netbench scenario reference -o docs/scenario-reference.md` writes it again."""
    page = Path(__file__).parents[2] / "docs" / "scenario-reference.md"
    assert page.read_text(encoding="utf-8") == reference_page()
    rows = [line for line in reference_page().splitlines() if line.startswith(("| `", "| **`"))]
    links = len(definitions()["LinkForm"]["properties"])  # which two other forms repeat
    assert len(rows) == sum(len(f["properties"]) for f in definitions().values()) - 2 * links


def test_unknown_keys_are_marked_wrong_by_editors_too() -> None:
    """In every section."""
    assert all(form["additionalProperties"] is False for form in definitions().values())


def test_values_with_units_are_text_with_an_example() -> None:
    """Not numbers, which pydantic would emit."""
    delay = definitions()["PairForm"]["properties"]["one_way_delay"]
    assert "string" in delay["type"]
    assert delay["examples"] == ["11ms"]


def test_a_rate_that_is_left_out_is_unlimited() -> None:
    """The default is the word used in files, because JSON has no infinity."""
    assert definitions()["LinkForm"]["properties"]["bandwidth"]["default"] == "unlimited"


def test_keys_are_those_of_the_file() -> None:
    """`from`, not the name of a Python field."""
    assert {"between", "from", "to"} <= set(definitions()["PairForm"]["properties"])


def test_a_jitter_or_loss_is_a_value_or_a_mapping() -> None:
    """Editors offer both, with the keys of the mapping."""
    link = definitions()["LinkForm"]["properties"]
    for key, form in (("jitter", "JitterForm"), ("loss", "BurstsForm")):
        text, mapping = link[key]["oneOf"]
        assert "string" in text["type"]
        assert mapping == {"$ref": f"#/$defs/{form}"}
    assert set(definitions()["JitterForm"]["properties"]) == {
        *("deviation", "distribution", "correlation", "reorders")
    }
    assert definitions()["BurstsForm"]["required"] == ["to_bad", "to_good"]
    assert {"duplication", "corruption", "reordering", "queue"} <= set(link)


def test_sharing_is_what_the_model_knows() -> None:
    """The form and the model list the same units of a rate."""
    assert tuple(definitions()["NetworkForm"]["properties"]["sharing"]["enum"]) == tuple(SHARING)
