"""The messages of the sources are short and plain: errors, warnings, notes and help. Run as a program, prints them all."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for folder in ("src", "apps", "include", "python") for path in sorted((ROOT / folder).rglob("*"))
           if path.suffix in (".cpp", ".h", ".cu", ".py")]

MOST_WORDS = 30
# Each needs a second reading: name the thing, the condition or the actor instead.
AVOID = [r"\bwhat (?:is|was|it|they|has|have|stands|comes|came|a|an|the|all|each|one|mezzo|may|can|does|ranks|runs|else|of|follows)\b",
         r"\bthat which\b|\bthose that\b|\bthose of\b", r"(?<!ends )\bwhere (?:there (?:is|are|was)|it|they|that|these|this|a|the|no|one)\b",
         r"\bso (?:many|much)\b(?! (?:that|as))", r"\blikewise\b|\ball the same\b|\bas ever\b|\balike\b|\bbut for\b|\bnone of (?:which|whose)\b",
         r"\bto the bits?\b", r"\b(?:of|on|by) (?:its|their|one's|your|his) own\b", r"(?<!there )\b(?:is|are) no (?!longer)\w+",
         r"\b(?:heeds?|tells? apart|flatters?|asks? nobody|wants? a look|comes? to nothing|goes? by|stands? (?:beside|there))\b",
         r"\brooms?\b|\bhouse\b", r"\bwhoever\b|\bwhichever\b|\bhowever (?:a|it|many|far)\b"]

TOKEN = re.compile(r"""//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"((?:[^"\\\n]|\\.)*)"|'(?:[^'\\\n]|\\.)+'""", re.S)


def of_cpp(text):
    """String literals. The literals of one expression are one message, with {} for the values between
    them."""
    code = TOKEN.sub(lambda m: re.sub(r"[^\n]", " ", m[0]) if m[0].startswith("/") else m[0], text)
    line, end, message = 0, 0, None
    for token in TOKEN.finditer(code):
        if token[2] is None or re.match(r"\s*#\s*include", code[code.rfind("\n", 0, token.start()) + 1:token.start()]):
            continue
        gap = code[end:token.start()].strip()
        literal = token[2].replace('\\"', '"').replace("\\n", "\n")
        if message is not None and not gap:
            message += literal
        elif message is not None and gap != "," and len(gap) < 160 and re.fullmatch(r"(?s)(?:,|\+|<<)(?:[^;{}?:]|::)*?(?:(?<=,)|(?<=\+)|(?<=<<))", gap):
            message += "{}" + literal
        else:
            if message is not None:
                yield line, message
            line, message = code.count("\n", 0, token.start()) + 1, literal
        end = token.end()
    if message is not None:
        yield line, message


def of_python(text):
    """Raised, warned and printed messages, with {} for the values."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            for part in node.args[:1]:
                if isinstance(part, ast.JoinedStr):
                    yield node.lineno, "".join(str(each.value) if isinstance(each, ast.Constant) else "{}" for each in part.values)
                elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield node.lineno, part.value


def is_message(text):
    """Not a name, a schema of an operator, a list of operators, assembly or a piece of a page."""
    return len(text.split()) > 3 and not re.search(r"Tensor\W|->|</?\w|%\d|\{\{|aten::|\baddbmm\b|\bacos\b|\bcumprod\b", text)


def messages():
    for path in SOURCES:
        text = path.read_text()
        for line, message in (of_python if path.suffix == ".py" else of_cpp)(text):
            if is_message(message):
                yield f"{path.relative_to(ROOT)}:{line}", message.strip()


def sentences(message):
    return re.split(r"(?<=[.!?])\s+|\n", message)


def test_messages_are_short_and_plain():
    every = list(messages())
    assert len(every) > 1000, "the messages are found"
    long = [f"{place}: {len(sentence.split())} words: {sentence}" for place, message in every for sentence in sentences(message)
            if len(sentence.split()) > MOST_WORDS]
    unclear = [f"{place}: {match[0]!r}: {message}" for place, message in every for phrase in AVOID if (match := re.search(phrase, message))]
    assert not long and not unclear, "\n".join(long + unclear)


if __name__ == "__main__":
    for place, message in messages():
        print(f"{place}: {' '.join(message.split())}")
