"""docs/openapi.json itself. test_serve.py holds each answer of the server against it."""
import re
from pathlib import Path

import jsonschema
import openapi
import pytest

SERVING = (Path(__file__).parents[3] / "docs/serving.md").read_text()


def test_the_schemas_are_schemas_and_references_lead_somewhere():
    def visit(node):
        if isinstance(node, dict) and "$ref" in node:
            found = openapi.API
            for name in node["$ref"].removeprefix("#/").split("/"):
                found = found[name]
        for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            visit(child)

    visit(openapi.API)
    for schema in openapi.API["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_requests_and_statuses_are_those_of_the_page():
    requests = set(re.findall(r"^\| `(GET|POST) (/\w*)` \|", SERVING, re.MULTILINE))
    described = {(method.upper(), path) for path, methods in openapi.API["paths"].items() for method in methods}
    assert described - {("GET", "/page.js")} == requests
    refused = SERVING[SERVING.index("## Refused requests"):SERVING.index("## Batches")]
    statuses = {status for row in re.findall(r"^\| ([\d, ]+) \|", refused, re.MULTILINE) for status in row.split(", ")}
    assert {f"Error{status}" for status in statuses} == set(openapi.API["components"]["responses"])
    members = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", SERVING[SERVING.index("`POST /predict` takes"):SERVING.index("A model that labels words")], re.MULTILINE)))
    assert set(members) == set(openapi.API["components"]["schemas"]["PredictRequest"]["properties"])


@pytest.mark.parametrize("body", [
    '{"text": "goal", "label": "sport", "score": 2}', '{"text": "goal", "label": null, "score": 0.5, "scores": {"sport": 0.5}, "logits": [1.5]}',
    '[{"text": "goal", "value": 0.5}]', '{"text": "a", "words": ["a"], "labels": ["B-PER"], "entities": []}',
])
def test_predictions_pass(body):
    openapi.check_answer("POST", "/predict", 200, body, "application/json")


@pytest.mark.parametrize("answer, error", [
    (("POST", "/predict", 200, '{"text": "goal", "name": "sport"}', "application/json"), jsonschema.ValidationError),
    (("POST", "/predict", 200, '{"label": "sport"}', "application/json"), jsonschema.ValidationError),
    (("POST", "/predict", 418, '{"error": "no"}', "application/json"), AssertionError),
    (("GET", "/models", 200, "sport", "text/plain"), AssertionError),
    (("GET", "/nowhere", 200, "{}", "application/json"), AssertionError),
])
def test_other_answers_do_not(answer, error):
    with pytest.raises(error):
        openapi.check_answer(*answer)
