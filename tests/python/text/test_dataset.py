"""mezzo's readers of data files against Python's json and csv modules, and its split against torch.randperm."""
import bz2
import csv
import gzip
import io
import json
import lzma
import os
import random
import re
from collections import Counter

import _mezzo
import pytest
import torch
import zstandard
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split
from sklearn.preprocessing import LabelEncoder

ALPHABET = ["a", "b", " ", "1", "0", ",", "\t", '"', '""', "\n", "\r", "\r\n", "中", "é", "😀", "\\", "'", "\x00", "\x7f",
            "\u2028"]  # fmt: skip


def random_text(rng, size=8):
    return "".join(rng.choice(ALPHABET) for _ in range(rng.randint(0, size)))


def random_label(rng, kind):
    return rng.randint(0, 20) if kind == "integers" else rng.choice(["joy", "怒", "a b", "1", "0x", ' "q"'])


def written(rows):
    """Labels as a file has them: classes keep the user's text."""
    return [(text, label if isinstance(label, str) else json.dumps(label)) for text, label in rows]


def load(path, data, **options):
    path.unlink(missing_ok=True)  # a new file, since some file systems flush one that is truncated
    path.write_bytes(data)
    texts, labels, lines = _mezzo.load_rows(str(path), **options)
    return list(zip(texts, labels)), lines


@pytest.mark.parametrize("seed", range(200))
def test_reads_what_the_json_module_writes(seed, tmp_path):
    rng = random.Random(seed)
    kind = rng.choice(["integers", "names"])
    rows = [(random_text(rng), random_label(rng, kind)) for _ in range(rng.randint(1, 20))]
    shaped = [rng.choice([list(row), {"x": [{"y": None}], "text": row[0], "label": row[1]}]) for row in rows]
    style = dict(ensure_ascii=rng.random() < 0.5)
    assert load(tmp_path / "a.json", json.dumps(shaped, indent=rng.choice([None, 2]), **style).encode())[0] == written(rows)
    lines = [json.dumps(row, **style) + rng.choice(["\n", "\r\n", "\n\n"]) for row in shaped]
    assert load(tmp_path / "a.jsonl", "".join(lines).encode())[0] == written(rows)
    assert load(tmp_path / "a.json", json.dumps(shaped).encode(), limit=3)[0] == written(rows[:3])


@pytest.mark.parametrize("seed", range(300))
def test_reads_what_the_csv_module_writes(seed, tmp_path):
    rng = random.Random(seed)
    tab = rng.random() < 0.5
    kind = rng.choice(["integers", "names"])
    rows = [(random_text(rng), random_label(rng, kind)) for _ in range(rng.randint(1, 20))]
    columns = ["text", "label", "id", "other, column"]
    rng.shuffle(columns)
    out = io.StringIO(newline="")
    end = rng.choice(["\n", "\r\n", "\r"])
    # The module quotes only line breaks of its line end, unless told to quote all.
    quoting = rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]) if end == "\r\n" else csv.QUOTE_ALL
    writer = csv.DictWriter(out, columns, delimiter="\t" if tab else ",", lineterminator=end, quoting=quoting)
    writer.writeheader()
    for text, label in rows:
        writer.writerow({"text": text, "label": label, "id": rng.randint(0, 9), "other, column": random_text(rng)})
    data = rng.choice([b"", b"\xef\xbb\xbf"]) + out.getvalue().encode()
    assert load(tmp_path / ("a.tsv" if tab else "a.csv"), data)[0] == written(rows)


@pytest.mark.parametrize("seed", range(20))
def test_splits_any_text_into_the_records_that_the_csv_module_finds(seed, tmp_path):
    """Random bytes after a header of one column: every record must be one field, or both must refuse."""
    rng = random.Random(seed)
    refused = 0
    for _ in range(60):
        body = "".join(rng.choice(["a", "中", " ", '"', '"', '""', "\n", "\r", "\r\n", "\t", "'"])
                       for _ in range(rng.randint(0, 12)))
        try:
            expected = [row for row in csv.reader(io.StringIO("text\n" + body, newline=""), strict=True)][1:]
        except csv.Error:
            expected = None
        expected = expected and [row[0] for row in expected if row]
        try:
            rows, _ = load(tmp_path / "a.csv", b"text\n" + body.encode(), has_labels=False)
            assert [text for text, _ in rows] == expected, repr(body)
        except ValueError as error:
            assert not expected, (body, error)
            refused += 1
    assert 3 < refused < 57


@pytest.mark.parametrize("seed", range(20))
def test_replaces_bytes_that_are_not_utf8_as_python_does(seed, tmp_path):
    rng = random.Random(seed)
    pieces = [b"a", b"\xc3\xa9", b"\xe4\xb8\xad", b"\xf0\x9f\x98\x80", b"\xc3", b"\xe4\xb8", b"\xf0\x9f\x98", b"\xf0",
              b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80", b"\xff",
              b"\xf8\x88\x80\x80\x80"]  # fmt: skip
    lines = [b"".join(rng.choice(pieces) for _ in range(rng.randint(0, 8))) for _ in range(200)]
    most = b"x" * 1000 * len(b"".join(lines))  # more than one invalid byte in 1,000 is an error
    rows, _ = load(tmp_path / "a.txt", most + b"\n" + b"\n".join(lines) + b"\n", has_labels=False, encoding="utf-8")
    assert [text for text, _ in rows][1:] == [line.decode("utf-8", "replace") for line in lines]


ALPHABETS = {"utf-8": "aé中😀\u2028", "utf-16": "aé中😀", "utf-16-be": "aé中😀", "utf-32": "aé中😀", "gb18030": "aé中😀", "gbk": "a中国",
             "latin-1": "aéß", "cp1252": "aé€“", "big5": "a中國", "shift_jis": "aあ漢ﾊ", "euc_jp": "aあ漢", "euc_kr": "a한글", "koi8_r": "aжЯ"}


@pytest.mark.parametrize("encoding", ALPHABETS)
def test_decodes_as_pythons_codecs_do(encoding, tmp_path):
    rng = random.Random(encoding)
    lines = ["".join(rng.choice(ALPHABETS[encoding]) for _ in range(rng.randint(1, 200))) for _ in range(3000)]
    rows, _ = load(tmp_path / "a.txt", "\n".join(lines).encode(encoding), has_labels=False, encoding=encoding)
    assert [text for text, _ in rows] == lines


@pytest.mark.parametrize("encoding", ["gb18030", "utf-8", "utf-16"])
def test_detects_the_encoding_of_the_emotion_data(encoding, tmp_path):
    path = os.path.join(os.environ.get("MEZZO_SHARED", ""), "data/emotion/train.json")
    if not os.path.exists(path):
        pytest.skip(f"{path} is missing")
    expected = [text for text, _ in json.load(open(path, encoding="utf-8"))]
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=";").writerows([("text", "label"), *((text, 0) for text in expected)])
    assert [text for text, _ in load(tmp_path / "a.csv", out.getvalue().encode(encoding))[0]] == expected


def python_json_rows(data):
    """The result of a strict reading of the rules with the json module, or None if the file breaks one."""

    def no_constant(_):
        raise ValueError("NaN and Infinity are not JSON")

    class Number(str):
        """As it is written."""

    def number(text):
        if abs(float(text)) == float("inf"):
            raise ValueError("too large")
        return Number(text)

    def pairs(items):
        keys = [key for key, _ in items]
        return {"two": True} if max(keys.count("text"), keys.count("label")) > 1 else dict(items)

    decoder = json.JSONDecoder(parse_constant=no_constant, parse_float=number, parse_int=number, object_pairs_hook=pairs)
    rows = []
    try:
        rest = data.decode("utf-8").strip(" \t\r\n")
        while rest:  # an array of rows, or one row after the other
            value, end = decoder.raw_decode(rest)
            rows.append(value)
            rest = rest[end:].strip(" \t\r\n")
        json.dumps(rows, ensure_ascii=False).encode("utf-8")  # no half surrogate pairs
    except (ValueError, RecursionError):
        return None
    if rows and isinstance(rows[0], list) and not (rows[0] and type(rows[0][0]) is str):
        rows = rows[0] if len(rows) == 1 else None
    if not rows:
        return None
    result = []
    for row in rows:
        if isinstance(row, dict):
            row = [row.get("text"), row.get("label")]
        if not isinstance(row, list) or len(row) != 2 or type(row[0]) is not str:
            return None
        if row[1] == "" or not isinstance(row[1], (str, bool)):
            return None
        result.extend(written([row]))
    return result


@pytest.mark.parametrize("seed", range(40))
def test_gives_the_json_modules_verdict_on_damaged_files(seed, tmp_path):
    rng = random.Random(seed)
    accepted = 0
    for _ in range(50):
        rows = [["a\\\"é中😀\n", 1], {"text": "b", "x": [1.5e3, -2, None, True, {}], "label": 0}][: rng.randint(1, 2)]
        data = bytearray(json.dumps(rows, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1])).encode())
        for _ in range(rng.randint(0, 2)):
            at = rng.randrange(len(data))
            byte = rng.choice(list(b'{}[]",:0123456789\\u-.eE \n\r\t\x00\xff\x80tfn'))
            choice = rng.random()
            if choice < 0.4:
                data[at] = byte
            elif choice < 0.7:
                data.insert(at, byte)
            else:
                del data[at : at + rng.randint(1, 3)]
        expected = python_json_rows(bytes(data))
        try:
            found = load(tmp_path / "a.json", bytes(data), encoding="utf-8")[0]
            accepted += 1
        except ValueError as error:
            assert re.match(r".*/a\.json(:\d+)?(: row \d+)?: .*\.$", str(error).splitlines()[0]), error
            found = None
        assert found == expected, data
    assert 4 < accepted < 46


def test_reads_the_emotion_data_as_the_json_module_does(tmp_path):
    path = os.path.join(os.environ.get("MEZZO_SHARED", ""), "data/emotion/train.json")
    if not os.path.exists(path):
        pytest.skip(f"{path} is missing")
    expected = written(json.load(open(path, encoding="utf-8")))
    texts, labels, lines = _mezzo.load_rows(path)
    assert list(zip(texts, labels)) == expected
    assert len(expected) == 40133
    assert set(lines) == {1}

    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerows([("text", "label"), *expected])
    assert load(tmp_path / "a.csv", out.getvalue().encode())[0] == expected
    assert load(tmp_path / "a.jsonl", "\n".join(json.dumps(row) for row in expected).encode())[0] == expected


@pytest.mark.parametrize("seed", [0, 1, 123, 2**31, 2**63])
@pytest.mark.parametrize("rows", [2, 13, 1000, 40133])
def test_splits_as_torch_randperm_orders(seed, rows):
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).tolist()
    before = torch.get_rng_state()
    texts = [str(i) for i in range(rows)]
    first_texts, first, second_texts, second = _mezzo.split_dataset(texts, range(rows), 0.3, seed)
    assert torch.equal(torch.get_rng_state(), before)
    assert first + second == order
    assert first_texts + second_texts == [str(i) for i in order]
    assert len(second) == round(0.3 * rows)


@pytest.mark.parametrize("seed", range(30))
def test_splits_by_class_as_evenly_as_scikit_learn(seed):
    """Other rows are drawn, but equally many of each class. The numbers may differ by a row if two classes have
    the same claim to the last one."""
    rng = random.Random(seed)
    counts = [rng.choice([2, 3, 7, 40, 200]) for _ in range(rng.randint(2, 7))]
    labels = [label for label, count in enumerate(counts) for _ in range(count)]
    rng.shuffle(labels)
    texts = [f"text {i}" for i in range(len(labels))]
    second = round(len(labels) * rng.uniform(0.1, 0.5))
    if second < len(counts):
        return  # which scikit-learn refuses
    first_texts, first, second_texts, held_out = _mezzo.split_by_class(texts, labels, second / len(labels), seed)
    assert sorted(first_texts + second_texts) == sorted(texts) and len(held_out) == second
    assert [labels[int(text.split()[1])] for text in first_texts + second_texts] == first + held_out
    _, theirs = train_test_split(labels, test_size=second, stratify=labels, random_state=seed)
    mine, theirs = Counter(held_out), Counter(theirs)
    assert all(abs(mine[label] - theirs[label]) <= 1 for label in range(len(counts)))
    assert all(abs(mine[label] - count * second / len(labels)) < 1 for label, count in enumerate(counts))
    assert set(first) == set(range(len(counts)))
    assert _mezzo.split_by_class(texts, labels, second / len(labels), seed)[2] == second_texts
    assert second < 5 or _mezzo.split_by_class(texts, labels, second / len(labels), seed + 1)[2] != second_texts


def test_splitting_by_class_leaves_a_class_of_one_to_training():
    texts, labels = [str(i) for i in range(12)], [0] * 10 + [1, 2]
    _, first, _, held_out = _mezzo.split_by_class(texts, labels, 0.25, 1)
    assert held_out == [0, 0, 0] and {1, 2} <= set(first)
    with pytest.raises(ValueError, match="no class has two rows"):
        _mezzo.split_by_class(["a", "b", "c"], [0, 1, 2], 0.3, 1)


COMPRESS = {".gz": gzip.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize("ending", COMPRESS)
def test_reads_what_was_compressed(ending, tmp_path):
    rng = random.Random(1)
    rows = [[f"{i} " + "".join(rng.choice("abcdef ") for _ in range(rng.randint(0, 40))), i % 3] for i in range(20000)]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    half = len(text) // 3
    parts = COMPRESS[ending](text[:half]) + COMPRESS[ending](b"") + COMPRESS[ending](text[half:])
    for data in (COMPRESS[ending](text), parts):
        assert load(tmp_path / f"a.JSONL{ending.upper()}", data)[0] == written(rows)


@pytest.mark.parametrize("ending", COMPRESS)
@pytest.mark.parametrize("size", [1, 65535, 65536, 65537, 131072, 655360])
def test_reads_compressed_files_of_every_size(ending, size, tmp_path):
    text = "x" * (size - 1) + "\n"
    (tmp_path / f"a.txt{ending}").write_bytes(COMPRESS[ending](text.encode()))
    texts, _, _ = _mezzo.load_rows(str(tmp_path / f"a.txt{ending}"), has_labels=False)
    assert texts == ["x" * (size - 1)]


@pytest.mark.parametrize("ending", COMPRESS)
def test_refuses_compressed_data_that_is_cut_or_altered(ending, tmp_path):
    rows = "".join(json.dumps([f"text {i * 7919 % 1000}", i % 2]) + "\n" for i in range(60)).encode()
    whole = COMPRESS[ending](rows) if ending == ".gz" else zstandard.ZstdCompressor(write_checksum=True).compress(rows)
    expected = load(tmp_path / "a.jsonl", rows)[0]
    for size in range(len(whole)):
        with pytest.raises(ValueError, match=rf"a\.jsonl\{ending}: .*(ends in the middle|is no g?zs?.*data, or damaged)"):
            load(tmp_path / f"a.jsonl{ending}", whole[:size])
    for bit in range(8 * len(whole)):
        altered = bytearray(whole)
        altered[bit // 8] ^= 1 << bit % 8
        try:
            assert load(tmp_path / f"a.jsonl{ending}", bytes(altered))[0] == expected  # as of a time stamp
        except ValueError as error:
            assert f"a.jsonl{ending}" in str(error)


LONG_WINDOW = b"\x28\xb5\x2f\xfd" + bytes([0, (31 - 10) << 3]) + b"\x01\0\0"  # a frame whose header asks for 2 GiB


def test_says_what_cannot_be_decompressed(tmp_path):
    for program, compress in {"xz": lzma.compress, "bzip2": bz2.compress}.items():
        with pytest.raises(ValueError, match=rf"a\.csv: the file is compressed by {program}, which is not read\."):
            load(tmp_path / "a.csv", compress(b"text,label\na,1\n"))
    with pytest.raises(ValueError, match=r"a\.jsonl\.zst: was compressed with a window of more than 128 MiB"):
        load(tmp_path / "a.jsonl.zst", LONG_WINDOW)
    rows = [("a", "1")]
    assert load(tmp_path / "a.jsonl.gz", gzip.compress(b'["a", 1]\n') + b"\0" * 70000)[0] == rows
    with pytest.raises(ValueError, match="is not gzip data, or is damaged"):
        load(tmp_path / "a.jsonl.gz", gzip.compress(b'["a", 1]\n') + b"\0" * 10 + b"junk that is no gzip")


def test_says_that_a_file_is_compressed(tmp_path):
    for ending, compress in COMPRESS.items():
        with pytest.raises(ValueError, match=rf"a\.csv: the file is compressed\. Name it .*a\.csv\{ending}\."):
            load(tmp_path / "a.csv", compress(b"text,label\na,1\n"))


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("seed", range(60))
def test_numbers_classes_as_the_label_encoder_does(seed):
    rng = random.Random(seed)
    values = [
        list(range(rng.randint(-3, 3), 12)), [rng.uniform(-5, 5) for _ in range(6)], [float(i) for i in range(5)], [True, False],
        ["joy", "Joy", "怒", "é", "a b", "10", "9"], ["007", "07", "7"],
    ][seed % 6]  # fmt: skip
    labels = rng.choices(values, k=50)
    encoder = LabelEncoder().fit(labels)
    spelled = [str(label) for label in labels]  # as pandas writes them
    names, ids = _mezzo.encode_labels(spelled, spelled)
    assert names == [str(name) for name in encoder.classes_.tolist()]
    assert ids == encoder.transform(labels).tolist()
    if seed % 6 < 4:  # the same in JSON, and in a file that spells it otherwise
        other = [json.dumps(int(label) if label == int(label) and not isinstance(label, bool) else label) for label in labels]
        assert _mezzo.encode_labels(spelled, other)[1] == ids


def test_reads_several_files(tmp_path):
    first = write(tmp_path / "a.jsonl", [["one", "x"], ["two", "y"]])
    second = tmp_path / "b.csv"
    second.write_text("label,text\ny,three\nx,four\n")
    texts, labels, places, _ = _mezzo.load_files([first, str(second), first])
    assert texts == ["one", "two", "three", "four", "one", "two"] and labels == list("xyyxxy")
    assert places == [f"{first}:1", f"{first}:2", f"{second}:2", f"{second}:3", f"{first}:1", f"{first}:2"]
    assert _mezzo.load_files([first, str(second)], limit=3)[0] == ["one", "two", "three"]
    assert _mezzo.load_files([first, "/none.csv"], limit=2)[0] == ["one", "two"]


def test_refuses_files_of_two_kinds(tmp_path):
    names = write(tmp_path / "names.jsonl", [["one", "x"]])
    pairs = write(tmp_path / "pairs.jsonl", [{"text": "a", "text_pair": "b", "label": "x"}])
    with pytest.raises(ValueError, match=r"pairs\.jsonl:1: row 1: the row has a text_pair where .*names\.jsonl:1 has none"):
        _mezzo.load_files([names, pairs])


def test_keeps_other_columns(tmp_path):
    others = [{"id": 1}, {}, {"a \"b": [1, {"c": None, "d": []}, "\u2028\n", {}], "e": True, "é": False}, {"n": {"m": "😀"}}]
    rows = [{**list_, "text": str(i), "label": "x"} for i, list_ in enumerate(others)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(rows, indent=3))
    kept = _mezzo.load_files([str(path)])[3]
    assert [json.loads(text or "{}") for text in kept] == others and not any("\n" in text for text in kept)
    path.write_text('[{"big": 12345678901234567890123, "text": "a", "small": 1.10e-2, "label": 7}, ["b", "x"]]')
    kept = _mezzo.load_files([str(path)], has_labels=False)[3]
    assert kept == ['{"big":12345678901234567890123,"small":1.10e-2,"label":7}', '{"label":"x"}']
    path = tmp_path / "a.tsv"
    path.write_bytes(b'id\ttext\tno "te"\tlabel\n7\ta\t"x ""y"""\tz\n\tb\t\xff\tz\n')
    assert [json.loads(text) for text in _mezzo.load_files([str(path)])[3]] == [
        {"id": "7", 'no "te"': 'x "y"'}, {"id": "", 'no "te"': "ÿ"}]  # fmt: skip
    path.write_text("id\tid\tlabel\tid.1\ttext\tid\n1\t2\tx\t3\ta\t4\n")
    assert json.loads(_mezzo.load_files([str(path)])[3][0]) == {"id": "1", "id.2": "2", "id.1": "3", "id.3": "4"}


@pytest.mark.parametrize("seed", range(50))
def test_folds_have_what_scikit_learns_have(seed):
    rng = random.Random(seed)
    labels = [rng.choice([0, 0, 0, 1, 2, 2, 5]) for _ in range(rng.randint(12, 90))] + [0] * 6  # some class has a row a fold
    rng.shuffle(labels)
    texts = [str(i) for i in range(len(labels))]
    folds = rng.randint(2, 6)
    for by_class, theirs in (True, StratifiedKFold(folds, shuffle=True, random_state=seed)), (False, KFold(folds)):
        seen = []
        sizes = []
        for fold, (_, test) in enumerate(theirs.split(texts, labels)):
            train_texts, train_labels, dev_texts, dev_labels = _mezzo.split_fold(texts, labels, folds, fold, by_class, seed)
            assert sorted(train_texts + dev_texts) == sorted(texts)
            assert [labels[int(text)] for text in train_texts + dev_texts] == train_labels + dev_labels
            if by_class:
                assert Counter(dev_labels) == Counter(labels[i] for i in test)
            sizes.append((len(dev_labels), len(test)))
            seen += dev_texts
        assert sorted(seen) == sorted(texts) and sorted(a for a, _ in sizes) == sorted(b for _, b in sizes)
        again = _mezzo.split_fold(texts, labels, folds, 0, by_class, seed + 1)[2]
        assert again != _mezzo.split_fold(texts, labels, folds, 0, by_class, seed)[2], "rows are drawn by seed"
    with pytest.raises(ValueError, match="cannot be split into"):
        _mezzo.split_fold(texts, labels, len(labels) + 1, 0, True, 0)
