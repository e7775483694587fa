"""Parquet files, written by pyarrow, hold the rows that the same ones have in JSON."""
import datetime
import decimal
import json
import os
import subprocess
from pathlib import Path

import _mezzo
import numpy
import pyarrow
import pyarrow.parquet
import pytest
from support import MINILM, PROGRAM, mezzo
from tiny_runs import flags, trained, write_data

ROWS = [("first", 0), ("", 1), ("a \"quoted\" \\ line\nand \t é 漢字 😀 \x00", 2), ("x" * 70000, 0)] * 40


pytestmark = pytest.mark.skipif(not (Path(PROGRAM).parent / "mezzo_parquet.so").exists(), reason="a build without Arrow")


def write(path, columns, **options):
    table = columns if isinstance(columns, pyarrow.Table) else pyarrow.table(columns)
    pyarrow.parquet.write_table(table, path, **options)
    return str(path)


def texts_and_labels(path, **options):
    texts, labels, lines = _mezzo.load_rows(path, **options)
    assert lines == list(range(1, len(texts) + 1))
    return list(zip(texts, labels, strict=True))


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
@pytest.mark.parametrize("type_", ["string", "large_string", "string_view", "dictionary", "binary"])
def test_texts_and_classes_are_what_was_written(tmp_path, compression, type_):
    texts = pyarrow.array([text for text, _ in ROWS])
    texts = texts.dictionary_encode() if type_ == "dictionary" else texts.cast(getattr(pyarrow, type_)())
    path = write(tmp_path / "a.parquet", dict(more=texts, text=texts, label=pyarrow.array([label for _, label in ROWS], pyarrow.int8())),
                 compression=compression, row_group_size=37, store_schema=type_ != "binary")
    written = [(text, str(label)) for text, label in ROWS]  # classes keep the file's values
    assert texts_and_labels(path) == written
    assert texts_and_labels(path, limit=50) == written[:50]


def test_labels_may_be_names_numbers_and_several(tmp_path):
    names = ["b", "a", "b"]
    for column in (pyarrow.array(names), pyarrow.array(names).dictionary_encode()):
        path = write(tmp_path / "a.parquet", dict(text=["x", "y", "z"], label=column))
        assert [label for _, label in texts_and_labels(path)] == names
    path = write(tmp_path / "a.parquet", dict(text=["x", "y"], label=[2.0, 0.0]))  # as pandas has integers where some are missing
    assert [float(label) for _, label in texts_and_labels(path)] == [2, 0]
    path = write(tmp_path / "a.parquet", dict(text=["x", "y"], label=[decimal.Decimal("1.50"), decimal.Decimal("-0.25")]))
    assert [label for _, label in texts_and_labels(path, labels="number")] == [1.5, -0.25]
    numbers = [0.1, -2.5, 1e300]
    path = write(tmp_path / "a.parquet", dict(text=["x", "y", "z"], label=numbers))
    assert [label for _, label in texts_and_labels(path, labels="number")] == numbers
    several = [["b", "a"], [], ["c"]]
    for column in (pyarrow.array(several), pyarrow.array(several, pyarrow.large_list(pyarrow.string()))):
        path = write(tmp_path / "a.parquet", dict(text=["x", "y", "z"], label=column))
        assert [label for _, label in texts_and_labels(path, labels="several")] == [["a", "b"], [], ["c"]]


def test_classes_of_hugging_faces_datasets_are_their_names(tmp_path):
    label = {"names": ["bad", "good", "é"], "_type": "ClassLabel"}
    features = {"label": label, "tags": {"feature": label, "_type": "List"}, "text": {"dtype": "string", "_type": "Value"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    columns = dict(text=["x", "y", "z"], label=[2, 0, 1], tags=[[0, 1], [], [2, -1]])
    table = pyarrow.table(columns).replace_schema_metadata(metadata)
    path = write(tmp_path / "a.parquet", table)
    assert [label for _, label in texts_and_labels(path)] == ["é", "bad", "good"]
    *_, others = _mezzo.load_files([path], has_labels=False)
    assert [json.loads(values)["tags"] for values in others] == [["bad", "good"], [], ["é", None]]
    several = pyarrow.table(dict(text=["x", "y"], label=[[1, 0], []])).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": {"label": {"feature": label, "_type": "Sequence"}}}})})
    assert [label for _, label in texts_and_labels(write(tmp_path / "b.parquet", several), labels="several")] == [["bad", "good"], []]
    deep, wide = "[" * 500_000 + "]" * 500_000, json.dumps([{}] * 300_000)
    beside = f'{{"info": {{"features": {{"label": {json.dumps(label)}, "deep": {deep}, "wide": {wide}}}}}}}'
    write(tmp_path / "a.parquet", table.replace_schema_metadata({"huggingface": beside}))
    assert [label for _, label in texts_and_labels(path)] == ["é", "bad", "good"]
    for damaged in ("{", "[]", f'{{"info": {{"features": {deep}}}}}', '{"info": 1}', '{"info": {"features": {"label": {"_type": "ClassLabel", "names": 3}}}}'):
        write(tmp_path / "a.parquet", table.replace_schema_metadata({"huggingface": damaged}))
        assert [label for _, label in texts_and_labels(path)] == ["2", "0", "1"]
    write(tmp_path / "a.parquet", pyarrow.table(dict(text=["x"], label=[-1])).replace_schema_metadata(metadata))
    with pytest.raises(ValueError, match="row 1: the row has no label"):
        _mezzo.load_rows(path)


def test_other_columns_are_handed_on_as_json(tmp_path):
    values = dict(
        whole=pyarrow.array([2**63 - 1], pyarrow.int64()), large=pyarrow.array([2**64 - 1], pyarrow.uint64()), small=pyarrow.array([-5], pyarrow.int8()),
        half=pyarrow.array([numpy.float16(0.1)]), single=pyarrow.array([0.1], pyarrow.float32()), double=[0.1], nan=[float("nan")],
        yes=[True], nothing=pyarrow.array([None], pyarrow.string()), null=pyarrow.nulls(1), day=[datetime.date(2024, 2, 29)],
        price=[decimal.Decimal("1.50")], fixed=pyarrow.array([[1, 2]], pyarrow.list_(pyarrow.int32(), 2)),
        nested=[{"a": [{"b": None}, {"b": "c"}], "d": 1}])
    path = write(tmp_path / "a.parquet", dict(values, text=["x"]))
    *_, others = _mezzo.load_files([path], has_labels=False)
    assert json.loads(others[0]) == dict(
        whole=2**63 - 1, large=2**64 - 1, small=-5, half=float(numpy.float16(0.1)), single=float(numpy.float32(0.1)), double=0.1, nan=None, yes=True,
        nothing=None, null=None, day="2024-02-29", price=1.5, fixed=[1, 2], nested={"a": [{"b": None}, {"b": "c"}], "d": 1})


@pytest.mark.parametrize("columns, message", [
    (dict(txet=["a"], label=[0]), "a.parquet:1: row 1: the row has no key 'text' among 'txet', 'label'. Pass --text-column 'txet'"),
    (dict(text=["a", None], label=[0, 1]), "a.parquet:2: row 2: the text is null, not a string"),
    (dict(text=[1, 2], label=[0, 1]), "a.parquet:1: row 1: the text is a number, not a string"),
    (dict(text=["a", "b"], label=[0, None]), "a.parquet:2: row 2: the row has no label"),
    (dict(text=[b"a", b"\xff"], label=[0, 1]), "a.parquet:2: row 2: column 'text' holds bytes that are not UTF-8."),
    (dict(text=pyarrow.array([], pyarrow.string()), label=pyarrow.array([], pyarrow.int64())), "a.parquet: the file has no rows."),
    (dict(text=[datetime.date(2024, 1, 1)], label=[0]),
     'a.parquet: column "text" is of type date32[day], expected texts, numbers or lists of them; save it in such a type.'),
    (dict(text=["a"], label=pyarrow.array([[("k", 1)]], pyarrow.map_(pyarrow.string(), pyarrow.int32()))), 'column "label" is of type map<string'),
    (dict(text=["a"], label=[[True]]), "a.parquet:1: row 1: the label is"),
])  # fmt: skip
def test_rows_that_are_wrong_are_told_by_their_number(tmp_path, columns, message):
    path = write(tmp_path / "a.parquet", columns)
    with pytest.raises(ValueError) as raised:
        _mezzo.load_rows(path)
    assert message in str(raised.value), str(raised.value)


def test_two_columns_of_one_name_are_refused(tmp_path):
    columns = [pyarrow.array(["a"]), pyarrow.array(["b"]), pyarrow.array([0])]
    path = write(tmp_path / "a.parquet", pyarrow.Table.from_arrays(columns, names=["text", "text", "label"]))
    with pytest.raises(ValueError, match='a.parquet: two columns are named "text".'):
        _mezzo.load_rows(path)


def test_a_column_of_lists_is_not_taken_for_the_rows(tmp_path):
    path = write(tmp_path / "a.parquet", dict(number=[1], spans=[[{"begin": 0}]]))
    with pytest.raises(ValueError, match=r"a.parquet:1: row 1: the row has no keys 'text' and 'label' among 'number', 'spans'"):
        _mezzo.load_rows(path)


def test_bytes_of_other_columns_may_be_anything(tmp_path):
    path = write(tmp_path / "a.parquet", dict(text=["a", "b"], image=[{"bytes": b"\xff\x00"}, {"bytes": b"png"}]))
    said = mezzo("tokenize", "--model", MINILM, "--data", path)
    assert len(said.stdout.splitlines()) == 2 and said.stderr == ""
    *_, others = _mezzo.load_files([path], has_labels=False)
    assert [json.loads(values) for values in others] == [{"image": {"bytes": "\ufffd\x00"}}, {"image": {"bytes": "png"}}]


def test_the_module_is_found_however_the_program_is_called(tmp_path):
    path = write(tmp_path / "a.parquet", dict(text=["a"]))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/mezzo_parquet.so").write_bytes(b"not to be loaded")
    (tmp_path / "linked").symlink_to(PROGRAM)
    for program, folders in (("mezzo", Path(PROGRAM).parent), (tmp_path / "linked", ""), (os.path.relpath(PROGRAM, tmp_path / "elsewhere"), "")):
        done = subprocess.run([str(program), "tokenize", "--model", str(MINILM), "--data", path], capture_output=True, text=True, cwd=tmp_path / "elsewhere",
                              env={**os.environ, "PATH": f"{folders}:{os.environ['PATH']}"})
        assert done.returncode == 0 and len(done.stdout.splitlines()) == 1, done.stderr


def test_an_installed_program_finds_the_module(tmp_path):
    path = write(tmp_path / "a.parquet", dict(text=["a"]))
    subprocess.run(["cmake", "--install", Path(PROGRAM).parents[1], "--prefix", tmp_path / "prefix"], check=True, stdout=subprocess.DEVNULL)
    done = subprocess.run([tmp_path / "prefix/bin/mezzo", "tokenize", "--model", str(MINILM), "--data", path], capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 1, done.stderr


def test_what_is_no_parquet_is_told(tmp_path):
    path = tmp_path / "a.parquet"
    damaged = "a.parquet: the file is damaged, or not Parquet: Parquet "
    for content, message in ((b"", "a.parquet: the file is empty."), (b"text,label\n" * 9, damaged + "magic bytes not found"), (b"hi", damaged + "file size is 2")):
        path.write_bytes(content)
        with pytest.raises(ValueError) as raised:
            _mezzo.load_rows(str(path))
        assert message in str(raised.value) and ".." not in str(raised.value).removeprefix(str(path))
    os.mkfifo(tmp_path / "fifo.parquet")
    writer = os.open(tmp_path / "fifo.parquet", os.O_RDWR)  # or opening it waits for one
    (tmp_path / "a.parquet.gz").touch()
    for missing, message in ((tmp_path / "b.parquet", "b.parquet: cannot be read: No such file"),
                             (tmp_path / "fifo.parquet", "fifo.parquet: Parquet can only be read from a file on a disk"), (tmp_path / "a.parquet.gz", "must not be compressed as a whole")):
        with pytest.raises(ValueError) as raised:
            _mezzo.load_rows(str(missing))
        assert message in str(raised.value)


def test_changed_bytes_are_found_where_pages_have_checksums(tmp_path):
    path = tmp_path / "a.parquet"
    write(path, dict(text=["unmistakable"] * 3, label=[0, 1, 0]), write_page_checksum=True, compression="none", use_dictionary=False)
    data = path.read_bytes()
    values = b"unmistakable" + bytes([12, 0, 0, 0]) + b"unmistakable"  # as they lie in the page
    assert data.count(values) == 1
    path.write_bytes(data.replace(values, values.replace(b"able", b"eble")))
    with pytest.raises(ValueError, match="a.parquet: the file is damaged, or not Parquet: .*CRC"):
        _mezzo.load_rows(str(path))


def test_a_damaged_file_is_told_or_gives_rows(tmp_path):
    """Without checksums changed values are not seen; but nothing may crash or hang."""
    whole = tmp_path / "whole.parquet"
    write(whole, dict(text=[f"text {i}" for i in range(8)], label=list(range(8))), compression="zstd")
    data, path, told = whole.read_bytes(), tmp_path / "a.parquet", 0
    for place in range(0, len(data), 3):
        for damaged in (data[:place], data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1:]):
            path.write_bytes(damaged)
            try:
                _mezzo.load_rows(str(path))
            except ValueError as error:
                assert "a.parquet" in str(error)
                told += 1
    assert told > len(data) / 3


def test_the_program_trains_and_predicts_by_it(tmp_path):
    data = write_data(tmp_path / "data")
    for name in ("train", "dev"):
        rows = [json.loads(line) for line in (data / f"{name}.jsonl").read_text().splitlines()]
        write(data / f"{name}.parquet", {key: [row[key] for row in rows] for key in ("text", "label")} | dict(id=list(range(len(rows)))))
    trained(flags(data, tmp_path / "json"))
    columns = dict(text_column="a.b", label_column="é")
    for name in ("train", "dev"):
        table = pyarrow.parquet.read_table(data / f"{name}.parquet")
        write(data / f"{name}.other.parquet", table.rename_columns([*columns.values(), "id"]))
    trained(flags(data, tmp_path / "parquet", "--train", data / "train.other.parquet", "--dev", data / "dev.other.parquet",
                  "--text-column", columns["text_column"], "--label-column", columns["label_column"]))
    assert (tmp_path / "json/model.safetensors").read_bytes() == (tmp_path / "parquet/model.safetensors").read_bytes()
    lines = mezzo("predict", "--model", tmp_path / "json", "--data", data / "dev.parquet").stdout
    assert [json.loads(line)["columns"]["id"] for line in lines.splitlines()] == list(range(30))
    plain = mezzo("predict", "--model", tmp_path / "json", "--data", data / "dev.jsonl").stdout
    without = [{key: value for key, value in json.loads(line).items() if key != "columns"} for line in lines.splitlines()]
    assert without == [{key: value for key, value in json.loads(line).items() if key != "columns"} for line in plain.splitlines()]
