"""docs/openapi.json as a judge of the server's answers."""
import json
from pathlib import Path

import jsonschema

API = json.loads((Path(__file__).parents[2] / "docs/openapi.json").read_text())


def validator(schema):
    return jsonschema.Draft202012Validator({**schema, "components": API["components"]})


def resolved(response):
    return API["components"]["responses"][response["$ref"].rsplit("/", 1)[1]] if "$ref" in response else response


def check_answer(method, path, status, body, content_type):
    """Fails for a status, a Content-Type or a body that the file does not have. Unknown paths and wrong methods get errors."""
    methods = API["paths"].get(path, {})
    operation = methods.get("get" if method == "HEAD" else method.lower())
    if operation is None:
        assert status in (400, 401, 403, 405 if methods else 404), (method, path, status)
        responses = {str(status): {"$ref": f"#/components/responses/Error{status}"}}
    else:
        responses = operation["responses"]
    assert str(status) in responses, f"{method} {path}: {status} is not in docs/openapi.json"
    content = resolved(responses[str(status)])["content"]
    assert content_type in content, f"{method} {path}: {content_type} is not in docs/openapi.json"
    if content_type == "application/json" and method != "HEAD":
        validator(content[content_type]["schema"]).validate(json.loads(body))


def check_request(body):
    """Fails for a body of /predict that the server took, and the file does not have."""
    validator({"$ref": "#/components/schemas/PredictRequest"}).validate(body)
