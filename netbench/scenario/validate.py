"""Check the data of a file against a form and report the first problem."""

from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from netbench.scenario.schema import TAG, shown
from netbench.scenario.source import SourceFile

Form = TypeVar("Form", bound=BaseModel)


def validate(source: SourceFile, form: type[Form]) -> Form:
    """Return `source.data` as `form`. Raises ScenarioError for the first problem in the file."""
    try:
        return form.model_validate(source.data)
    except ValidationError as error:
        problems = [(_keys(problem), _message(problem)) for problem in error.errors()]
        keys, message = min(problems, key=lambda problem: source.line(problem[0]))
        raise source.error(keys, message) from None


def _keys(problem: Any) -> tuple[str | int, ...]:
    """Return the path of the invalid value, without the names of alternatives."""
    keys = [key for key in problem["loc"] if not str(key).startswith(TAG)]
    key = problem.get("ctx", {}).get("key")
    return (*keys, key) if key else tuple(keys)


def _message(problem: Any) -> str:
    """Return what is wrong and what to write; it follows the path of the value."""
    if problem["type"] == "netbench":
        return str(problem["msg"])
    if problem["type"] == "value_error":
        return str(problem["ctx"]["error"])
    return f"is {shown(problem['input'])}; {_expected(problem)}"


def _expected(problem: Any) -> str:
    context = problem.get("ctx", {})
    match problem["type"]:
        case "literal_error":
            return f"expected {context['expected']}"
        case "greater_than":
            return f"expected more than {context['gt']}"
        case "less_than_equal":
            return f"expected at most {context['le']}"
        case "int_parsing" | "int_type" | "int_from_float":
            return "expected a whole number"
        case "bool_parsing" | "bool_type":
            return "expected true or false"
        case "string_type":
            return "expected text"
        case "string_pattern_mismatch":
            return "expected letters, digits, dots, dashes and underscores only"
        case "too_short":
            return f"expected at least {context['min_length']} of them"
        case "too_long":
            return f"expected at most {context['max_length']} of them"
    text = str(problem["msg"])
    return text[0].lower() + text[1:]
