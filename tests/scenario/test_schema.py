"""The JSON schema of scenario files."""

from __future__ import annotations

import json
from typing import Any

from netbench.scenario.model import JITTER_DISTRIBUTIONS, SHARING
from netbench.scenario.schema import scenario_json_schema


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
    """Not numbers, as pydantic would have it."""
    delay = definitions()["PairForm"]["properties"]["one_way_delay"]
    assert "string" in delay["type"]
    assert delay["examples"] == ["11ms"]


def test_a_rate_that_is_left_out_is_unlimited() -> None:
    """In the word that a file takes, for JSON has no infinity."""
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


def test_what_jitter_may_follow_is_what_the_model_knows() -> None:
    """The form and the model list the same."""
    listed = definitions()["JitterForm"]["properties"]["distribution"]["enum"]
    assert tuple(listed) == JITTER_DISTRIBUTIONS
    assert tuple(definitions()["NetworkForm"]["properties"]["sharing"]["enum"]) == SHARING
