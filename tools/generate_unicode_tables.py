"""Writes src/text/tokenizers/unicode_tables.inc: how Hugging Face's tokenizers treat each of the 1,112,064 code points.

Nothing is taken from a Unicode file. The installed tokenizers library is asked about every code point. Its parts follow
different Unicode versions: its category tables are years older than its lower-casing. Ids are only equal if these
differences are kept. Run it again after an upgrade of tokenizers; tests/python/text/test_tokenizer.py compares the
result with the library.

    .venv/bin/python tools/generate_unicode_tables.py src/text/tokenizers/unicode_tables.inc
"""
import argparse
import struct
import sys
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece

CODE_POINTS = [*range(0xD800), *range(0xE000, 0x110000)]
PAGE = 128  # code points a page
COLUMNS = 118
FLAGS = ["clean_drop", "clean_space", "chinese", "nonspacing_mark", "white_space", "punctuation", "word", "hangul",
         "letter", "number", "digit", "combining_mark", "pre_tokenizer_word"]
# What decides where grapheme clusters end, in the order of `enum class Grapheme` in unicode.h.
GRAPHEMES = ["other", "control", "attached", "extend", "conjunct_extend", "conjunct_linker", "zwj", "prepend",
             "hangul_l", "hangul_v", "hangul_t", "hangul_syllable", "regional_indicator", "pictograph", "consonant"]
HANGUL = range(0xAC00, 0xD7A4)


def bert(**on):
    off = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**off, **on}).normalize_str


def probe_flags():
    """The set of code points with each flag, by the library's output for them between two letters."""
    clean, chinese, strip = bert(clean_text=True), bert(handle_chinese_chars=True), bert(strip_accents=True)
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    flags = {name: set() for name in FLAGS}
    for c in CODE_POINTS:
        s = chr(c)
        cleaned = clean(f"a{s}b")
        if cleaned != f"a{s}b" or s == " ":
            flags[{"ab": "clean_drop", "a b": "clean_space"}[cleaned]].add(c)
        if chinese(s) != s:
            assert chinese(s) == f" {s} ", hex(c)
            flags["chinese"].add(c)
        if strip("a" + s) == "a":
            flags["nonspacing_mark"].add(c)
        words = [word for word, _ in split(f"a{s}b")]
        if words == ["a", "b"]:
            flags["white_space"].add(c)
        elif words == ["a", s, "b"]:
            flags["punctuation"].add(c)
        else:
            assert words == [f"a{s}b"], hex(c)
    flags["hangul"].update(HANGUL)
    flags["word"] = probe_word()
    probe_strip_equals(flags["white_space"])
    for name, pattern in ("letter", r"\p{L}"), ("number", r"\p{N}"):
        flags[name] = removed_by(pattern)
    assert removed_by(r"\s") == flags["white_space"]
    probe_pre_tokenizers(flags)
    strip, strip_accents = normalizers.Strip().normalize_str, normalizers.StripAccents().normalize_str
    for c in CODE_POINTS:
        assert (strip(chr(c)) == "") == (c in flags["white_space"]), hex(c)
        if strip_accents("a" + chr(c)) == "a":
            flags["combining_mark"].add(c)
    return flags


def removed_by(pattern):
    """Code points that a class of tokenizers' regular expressions holds."""
    split = pre_tokenizers.Split(Regex(pattern), "removed").pre_tokenize_str
    return {c for c in CODE_POINTS if len(split(f"\x01{chr(c)}\x01")) == 2}


def probe_pre_tokenizers(flags):
    """Digits, and the words of Whitespace. Checks that the sets of the other pre-tokenizers exist already."""
    digits, words = pre_tokenizers.Digits().pre_tokenize_str, pre_tokenizers.Whitespace().pre_tokenize_str
    spaces, punctuation = pre_tokenizers.WhitespaceSplit().pre_tokenize_str, pre_tokenizers.Punctuation().pre_tokenize_str
    for c in CODE_POINTS:
        text = f"a{chr(c)}a"
        if len(digits(text)) == 3:
            flags["digit"].add(c)
        found = [word for word, _ in words(text)]
        assert (found == ["a", "a"]) == (c in flags["white_space"]), hex(c)
        if found == [text]:
            flags["pre_tokenizer_word"].add(c)
        assert (len(spaces(text)) == 2) == (c in flags["white_space"]), hex(c)
        assert (len(punctuation(text)) == 3) == (c in flags["punctuation"]), hex(c)


def added_token_matcher(**options):
    tokenizer = Tokenizer(WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.add_tokens([AddedToken("<x>", normalized=False, **options)])
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def probe_word():
    """Code points that forbid a match of a `single_word` token beside them: the regular expression \\w."""
    ids = added_token_matcher(single_word=True)
    before = {c for c in CODE_POINTS if 2 not in ids(chr(c) + "<x>")}
    after = {c for c in CODE_POINTS if 2 not in ids("<x>" + chr(c))}
    assert before == after
    return before


def probe_strip_equals(white_space):
    """`lstrip` and `rstrip` take the regular expression \\s; the tables have one set for that and for splitting."""
    left, right = added_token_matcher(lstrip=True), added_token_matcher(rstrip=True)
    for c in CODE_POINTS:
        assert (left(chr(c) + "<x>") == [2]) == (right("<x>" + chr(c)) == [2]) == (c in white_space), hex(c)


def probe_nfd():
    nfd = normalizers.NFD().normalize_str
    table = {c: [ord(x) for x in nfd(chr(c))] for c in CODE_POINTS}
    for c in HANGUL:
        syllable = c - 0xAC00
        jamo = [0x1100 + syllable // 588, 0x1161 + syllable % 588 // 28, 0x11A7 + syllable % 28]
        assert table.pop(c) == jamo[: 3 if syllable % 28 else 2], hex(c)
    return {c: decomposed for c, decomposed in table.items() if decomposed != [c]}


def probe_nfkd(nfd):
    """Code points that NFKD changes otherwise than NFD."""
    nfkd = normalizers.NFKD().normalize_str
    table = {c: [ord(x) for x in nfkd(chr(c))] for c in CODE_POINTS if c not in HANGUL}
    return {c: decomposed for c, decomposed in table.items() if decomposed != nfd.get(c, [c])}


def probe_compositions(nfd):
    """(first, second, composed): what NFC puts together again. Hangul is arithmetic."""
    nfc = normalizers.NFC().normalize_str
    found = []
    for c, decomposed in nfd.items():
        if len(decomposed) > 1 and nfc(chr(c)) == chr(c):
            first, second = nfc("".join(map(chr, decomposed[:-1]))), chr(decomposed[-1])
            assert len(first) == 1 and nfc(first + second) == chr(c), hex(c)
            found.append((ord(first), ord(second), c))
    return sorted(found)


def probe_graphemes():
    """The class of each code point by which tokenizers' Precompiled finds the ends of grapheme clusters.

    Its charsmap here turns what starts with any byte into Z. A cluster of less than six bytes is looked up as a whole,
    a longer one by code points, so that counting Z tells clusters apart. What cannot be seen so makes no difference.
    """
    array = [0] * 1024
    array[0] = 256 << 10
    for byte in range(1, 256):
        array[256 ^ byte] = byte | 1 << 8 | (256 ^ byte ^ 512) << 10
    array[512] = 1 << 31
    blob = struct.pack("<I", 4 * len(array)) + struct.pack(f"<{len(array)}I", *array) + b"Z\0"
    normalize = normalizers.Precompiled(blob).normalize_str
    count = lambda text: len(normalize(text))
    grave, zwj, sun, ga, gag, ka, virama = "\u0300", "\u200d", "\u2600", "\uac00", "\uac01", "\u0915", "\u094d"
    classes = {0: "control"}
    for c in CODE_POINTS[1:]:
        s = chr(c)
        if count("a" + s) == 1:  # attached to the preceding text
            extends = count(sun + s + zwj + sun + grave) == 5
            links = count(ka + s + ka + grave) == 4
            between = count(ka + virama + s + ka + grave) == 5
            assert extends or not (links or between) or s == zwj, hex(c)
            kind = "conjunct_linker" if links else "conjunct_extend" if between else "extend" if extends else "attached"
            classes[c] = "zwj" if s == zwj else kind
        elif count(s + "a") == 1 or s == "\r":
            classes[c] = "control" if s == "\r" else "prepend"
        elif count(s + grave + grave) == 2:
            classes[c] = "control"
        elif c in HANGUL:
            classes[c] = "hangul_syllable"
        elif count(s + ga + grave) == 3:
            classes[c] = "hangul_l"
        elif count(s + "\u1161" + grave) == 3:
            classes[c] = "hangul_v"
        elif count(s + "\u11a8" + grave) == 3:
            classes[c] = "hangul_t"
        elif count(s + zwj + sun + grave) == 4:
            classes[c] = "pictograph"
        elif count(s + virama + ka + grave) == 4:
            classes[c] = "consonant"
        elif 0x1F1E6 <= c <= 0x1F1FF:  # pairs of these; of eight bytes, so that nothing can be seen of one alone
            classes[c] = "regional_indicator"
    seconds = {"hangul_l": ("\u1100", 3), "hangul_v": (ga, 3), "hangul_t": (gag, 3), "pictograph": (sun + zwj, 4),
               "consonant": (ka + virama, 4)}
    for c, kind in classes.items():
        if kind in seconds and 0x800 <= c < 0x10000:
            before, joined = seconds[kind]
            assert count(before + chr(c) + grave) == joined, hex(c)
    for c in HANGUL:
        assert count("\u1100" + chr(c) + grave) == 3 == count(chr(c) + "\u11a8" + grave), hex(c)
        assert (count(chr(c) + "\u1161" + grave) == 3) == ((c - 0xAC00) % 28 == 0), hex(c)
    return {c: GRAPHEMES.index(kind) for c, kind in classes.items()}


def probe_combining_classes(decomposed):
    """Canonical combining classes, seen through the reordering of pairs by the library's NFD."""
    nfd = normalizers.NFD().normalize_str
    swaps = lambda a, b: nfd(a + b) == b + a != a + b
    low, high = "\u0334", "\u0345"  # classes 1 and 240, the ends of the range
    marks = [chr(c) for c in CODE_POINTS if c not in decomposed and (swaps(chr(c), low) or swaps(high, chr(c)))]
    marks += [m for m in (low, high) if m not in marks]
    known = {}  # one mark of each class by Python's table, checked against the library below
    for mark in marks:
        known.setdefault(unicodedata.combining(mark), mark)
    known.pop(0, None)
    ranks = sorted(known)
    for a in ranks:
        for b in ranks:
            assert swaps(known[a], known[b]) == (a > b), (a, b)
    classes = {}
    for mark in marks:
        equal = [k for k in ranks if not swaps(mark, known[k]) and not swaps(known[k], mark)]
        assert len(equal) == 1, (hex(ord(mark)), equal)  # else the library has a class that no known mark stands for
        classes[ord(mark)] = equal[0]
    return classes


def probe_lower():
    lower = normalizers.Lowercase().normalize_str
    return {c: [ord(x) for x in lower(chr(c))] for c in CODE_POINTS if lower(chr(c)) != chr(c)}


def wrap(values):
    line, lines = "", []
    for value in values:
        if len(line) + len(value) + 2 > COLUMNS:
            lines.append(line)
            line = ""
        line += (" " if line else "") + value + ","
    return "\n".join("  " + x for x in lines + [line])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output")
    output = parser.parse_args().output

    flags, nfd, lower = probe_flags(), probe_nfd(), probe_lower()
    classes, graphemes = probe_combining_classes(nfd), probe_graphemes()
    nfkd, compositions = probe_nfkd(nfd), probe_compositions(nfd)

    pool, offsets = [], {}

    def sequence(values):
        """(offset, length) of a replacement in the pool; (0, 0) means the code point itself."""
        key = tuple(values or ())
        if key and key not in offsets:
            offsets[key] = len(pool)
            pool.extend(key)
        return (offsets[key], len(key)) if key else (0, 0)

    records, record_index, index = [], {}, [0] * 0x110000
    for c in CODE_POINTS:
        bits = sum(1 << i for i, name in enumerate(FLAGS) if c in flags[name])
        record = (bits, classes.get(c, 0), f"Grapheme{{{graphemes.get(c, 0)}}}", *sequence(nfd.get(c)),
                  *sequence(nfkd.get(c)), *sequence(lower.get(c)))
        if record not in record_index:
            record_index[record] = len(records)
            records.append(record)
        index[c] = record_index[record]
    assert len(records) < 1 << 16 and len(pool) < 1 << 16

    pages, page_index = {}, []
    for start in range(0, 0x110000, PAGE):
        page = tuple(index[start : start + PAGE])
        page_index.append(pages.setdefault(page, len(pages)))

    with open(output, "w", encoding="ascii") as out:
        out.write(
            f"// Written by tools/generate_unicode_tables.py from tokenizers {tokenizers.__version__}. Do not edit.\n"
            f"// clang-format off\n"
            f"constexpr int kPageBits = {PAGE.bit_length() - 1};\n"
            f"constexpr uint16_t kPageIndex[{len(page_index)}] = {{\n{wrap(map(str, page_index))}\n}};\n"
            f"constexpr uint16_t kPages[{len(pages)}][{PAGE}] = {{\n"
        )
        for page in pages:
            out.write("{\n" + wrap(map(str, page)) + "\n},\n")
        out.write(
            f"}};\n// {{flags, combining class, grapheme, NFD offset and length, NFKD offset and length, lower offset and length}}\n"
            f"constexpr Properties kRecords[{len(records)}] = {{\n"
            + wrap("{" + ", ".join(map(str, r)) + "}" for r in records)
            + f"\n}};\nconstexpr char32_t kSequences[{len(pool)}] = {{\n{wrap(map(hex, pool))}\n}};\n"
            f"// {{first, second, what NFC makes of them}}, ascending\n"
            f"constexpr Composition kCompositions[{len(compositions)}] = {{\n"
            + wrap("{" + ", ".join(map(hex, c)) + "}" for c in compositions)
            + f"\n}};\n// clang-format on\n"
        )
    print(f"{output}: {len(pages)} pages, {len(records)} records, {len(pool)} code points in sequences", file=sys.stderr)


if __name__ == "__main__":
    main()
