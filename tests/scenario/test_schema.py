"""The JSON schema of scenario files."""

from __future__ import annotations

import json
from typing import Any

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
