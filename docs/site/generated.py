"""The parts of pages that are made from the program and the sources: each `<!-- generated: NAME ARGUMENT -->` of a page is replaced."""
import json
import os
import re
import subprocess
from pathlib import Path

import module_graph

ROOT = Path(__file__).parents[2]
PROGRAM = os.environ.get("MEZZO_PROGRAM", ROOT / "build/release/bin/mezzo")


def table(heads, rows):
    cells = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in cells) + "\n"


def flags(heads, rows):
    """A table with flags in one line each, by docs/site/static/mezzo.css."""
    return f"\n::::{{div}} flags\n\n{table(heads, rows)}\n::::\n"


def code(words):
    return ", ".join(f"`{word}`" for word in words)


def mezzo(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, check=True).stdout


def options_of(command):
    """(group, flag, metavar, description) of each option in the order of the help, with the lines of one joined."""
    rows, group = [], ""
    for line in mezzo(command, "--help-all").splitlines():
        if found := re.fullmatch(r"(\S.*):", line):
            group = found[1]
        elif found := re.match(r"  (?:-\w, )?(--[\w-]+)(?: (\S+))?(?:  +(.*))?$", line):
            rows.append([group, found[1], found[2] or "", found[3] or ""])
        elif line.startswith(" " * 26) and rows:
            rows[-1][3] = f"{rows[-1][3]} {line.strip()}".strip()
    return [row for row in rows if row[0] not in ("Examples", "search.toml") and row[1] not in ("--help", "--help-all")]


def split_default(description):
    """The description, and the default that ends it."""
    found = re.fullmatch(r"(.*?)(?: \[default: ?(.*)\])?", description)
    return found[1].replace(" [required]", ""), "required" if "[required]" in description else found[2] or ""


def marked(text):
    """Flags and files in a help text as code."""
    return re.sub(r"(?<![\w`-])(--[\w-]+)", r"`\1`", text)


def initializer(tokens):
    """The braced list of C++ that begins behind its brace: {position or field name: value}."""
    values, key = {}, None
    for token in tokens:
        if token == "}":
            return values
        if token.startswith("."):
            key = token[1:]
        elif token != ",":
            value = initializer(tokens) if token == "{" else token.strip('"')
            values[len(values) if key is None else key] = value
            key = None


def other_names():
    """[(names of other programs, the arguments in their place, advice if there are none)] of apps/mezzo/other_names.cpp."""
    source = (ROOT / "apps/mezzo/other_names.cpp").read_text()
    tokens = re.finditer(r'"(?:[^"\\]|\\.)*"|\.\w+|\w+|[{},]', source[source.index(" names = {") + len(" names = {"):].replace('"\n', '" \n'))
    result = []
    for entry in initializer(token[0] for token in tokens).values():
        field = lambda name, position: entry.get(name, entry.get(position))
        if "is_old" not in entry:
            result.append((list(field("names", 0).values()), list((field("meaning", 1) or {}).values()), field("advice", 2) or ""))
    return result


def settings(_):
    """Of `mezzo train`, with the names of transformers beside them."""
    others = {}
    for names, meaning, _ in other_names():
        for argument in meaning:
            flag, _, value = argument.partition("=")
            others.setdefault(flag, []).extend(f"`--{name.replace('-', '_')}`" + (f" ({value})" if value.strip("{}") else "") for name in names)
    text, group = "", None
    rows = []
    for of_group, flag, metavar, description in [*options_of("train"), (None, "", "", "")]:
        if of_group != group and group is not None:
            text += f"\n## {group}\n" + flags(["flag", "meaning", "default", "in transformers and PEFT"], rows)
            rows = []
        group = of_group
        meaning, default = split_default(description)
        rows.append([f"`{flag} {metavar}`".replace(" `", "`"), marked(meaning), f"`{default}`" if default not in ("", "required") else default,
                     "<br>".join(others.get(flag, []))])
    return text


def refused(_):
    """Names of other programs that have no flag of mezzo."""
    return table(["argument", "answer"], [[code("--" + name.replace("-", "_") for name in names), marked(advice)]
                                          for names, meaning, advice in other_names() if advice])


def commands(_):
    """All flags of all commands but train, whose flags have a page."""
    text = ""
    for name in re.findall(r"^  ([a-z][\w-]*)  ", mezzo("--help"), re.MULTILINE):
        description = mezzo(name, "--help").splitlines()[0]
        text += f"\n## mezzo {name}\n\n{description}.\n\n"
        if name == "train":
            text += "Its flags are the [settings](settings.md).\n"
        elif rows := options_of(name):
            text += flags(["flag", "meaning", "default"], [
                [f"`{flag} {metavar}`".replace(" `", "`"), marked(meaning), f"`{default}`" if default not in ("", "required") else default]
                for _, flag, metavar, (meaning, default) in [(*row[:3], split_default(row[3])) for row in rows]])
    return text


def cpp(folder):
    """The public headers of a folder of include/mezzo."""
    text = ""
    for header in sorted((ROOT / "include/mezzo" / folder).glob("*.h")):
        name = header.relative_to(ROOT / "include")
        text += f"\n## {header.name}\n\n```cpp\n#include <{name}>\n```\n\n```{{doxygenfile}} {name}\n```\n"
    return text


def kind_of(schema, schemas):
    """A JSON schema in words."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    if "oneOf" in schema:
        return " or ".join(kind_of(one, schemas) for one in schema["oneOf"])
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array":
        return "array of " + kind_of(schema["items"], schemas)
    if kind == "object" and "additionalProperties" in schema and schema["additionalProperties"]:
        return "object: name to " + kind_of(schema["additionalProperties"], schemas)
    return kind


def http(_):
    """The paths and schemas of docs/openapi.json."""
    api = json.loads((ROOT / "docs/openapi.json").read_text())
    schemas = api["components"]["schemas"]
    text = ""
    for path, methods in api["paths"].items():
        for method, operation in methods.items():
            text += f"\n## {method.upper()} {path}\n\n{operation['summary']}.\n\n"
            if "requestBody" in operation:
                text += "Body: " + kind_of(next(iter(operation["requestBody"]["content"].values()))["schema"], schemas) + "\n\n"
            rows = []
            for status, response in operation["responses"].items():
                response = api["components"]["responses"][response["$ref"].rsplit("/", 1)[1]] if "$ref" in response else response
                bodies = [kind_of(body["schema"], schemas) if "json" in kind else f"`{kind}`" for kind, body in response.get("content", {}).items()]
                rows.append([status, response["description"], ", ".join(bodies)])
            text += table(["status", "meaning", "body"], rows)
    text += "\n## Schemas\n"
    for name, schema in schemas.items():
        text += f"\n### {name}\n\n{schema['description']}.\n\n"
        required = schema.get("required", [])
        text += table(["member", "type", "meaning"], [[f"`{member}`" + (", required" if member in required else ""), kind_of(of, schemas), of.get("description", "")]
                                                      for member, of in schema.get("properties", {}).items()])
    return text


def modules(_):
    return "```{raw} html\n" + module_graph.svg() + "\n```\n"


GENERATORS = {made.__name__: made for made in (settings, refused, commands, cpp, http, modules)}


def without_folders(text, name):
    """Links to folders as plain text: the site has pages and files alone."""
    folder = (ROOT / name).parent
    return re.sub(r"(?<!!)\[([^\]]+)\]\(([^):#]+)\)", lambda found: found[1] if (folder / found[2]).is_dir() else found[0], text)


def filled(text, name):
    """The page `name` as Sphinx reads it."""
    if name == "benchmarks/README":
        text += "\n```{toctree}\n:hidden:\n:glob:\n\nresults/**\n```\n"
    text = re.sub(r"<!-- generated: (\w+)(?: (\S+))? -->", lambda found: GENERATORS[found[1]](found[2]), text)
    return without_folders(text, name)
