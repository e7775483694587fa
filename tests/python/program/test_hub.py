"""`--model` by a name on the Hugging Face Hub, against a server that answers as the hub does. huggingface_hub uses the same server and cache."""
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
import time

import filelock
import pytest
from hub_server import Hub, Model
from safetensors.torch import load_file, save_file
from support import PROGRAM, random_bert
from tiny_runs import LABELS, WORDS, write_data

TEXT = ["--text", "goal law storm"]
WANTED = ["config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BERT of 1.2 MB with its tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    vocab = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *(f"w{i}" for i in range(9000))]
    random_bert(folder, len(LABELS), vocab_size=len(vocab), hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, max_position_embeddings=16,
                id2label=dict(enumerate(LABELS)), label2id={name: i for i, name in enumerate(LABELS)})
    (folder / "vocab.txt").write_text("\n".join(vocab) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(dict(tokenizer_class="BertTokenizer")))
    return folder


def files_of(folder, **more):
    return {path.name: path.read_bytes() for path in folder.iterdir()} | more


@pytest.fixture
def hub(folder):
    with Hub() as hub:
        extra = {"README.md": b"# A model\n", "pytorch_model.bin": b"a pickle", "onnx/model.onnx": b"a graph"}
        hub.models["org/tiny"] = Model(files_of(folder, **extra), tags=("v1", "refs/pr/1"))
        yield hub


@pytest.fixture
def environment(hub, tmp_path):
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy") and not name.startswith("HF_")}
    return kept | {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": hub.address(), "OMP_NUM_THREADS": "1", "NO_PROXY": "127.0.0.1"}


def mezzo(environment, *arguments, **options):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=120, env=environment, **options)


def predict(environment, model, **options):
    return mezzo(environment, "predict", "--model", model, "--precision", "fp32", *TEXT, **options)


def cache(tmp_path, name="models--org--tiny"):
    return tmp_path / "hf/hub" / name


def python(environment, code):
    """huggingface_hub reads the environment when it is imported."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_model_is_downloaded_and_then_read_from_the_cache(hub, environment, folder, tmp_path):
    first = predict(environment, "org/tiny")
    assert first.returncode == 0, first.stderr
    assert first.stdout == predict(environment, folder).stdout
    assert "download 100%" in first.stderr, "the progress bar"
    snapshot = cache(tmp_path) / "snapshots" / hub.models["org/tiny"].commit
    assert sorted(path.name for path in snapshot.iterdir()) == WANTED
    assert not list(cache(tmp_path).rglob("*.incomplete"))
    again = len(hub.requests)
    assert predict(environment, "org/tiny").stdout == first.stdout
    assert [request[1:3] for request in hub.requests[again:]] == [("GET", "/api/models/org/tiny/revision/main")]
    again = len(hub.requests)
    assert predict(environment | {"HF_HUB_OFFLINE": "1"}, "org/tiny").stdout == first.stdout
    assert predict(environment, f"org/tiny@{snapshot.name}").stdout == first.stdout, "a commit does not change"
    assert len(hub.requests) == again


def test_huggingface_hub_reads_what_mezzo_downloaded(hub, environment, tmp_path):
    assert predict(environment, "org/tiny@v1").returncode == 0
    offline = environment | {"HF_HUB_OFFLINE": "1"}
    code = "from huggingface_hub import *; print(snapshot_download('org/tiny', revision='v1'), try_to_load_from_cache('org/tiny', 'config.json', revision='v1'))"
    snapshot, config = python(offline, code).split()
    assert config == f"{snapshot}/config.json" and snapshot.endswith(hub.models["org/tiny"].commit)
    load = "from transformers import *; print(AutoModelForSequenceClassification.from_pretrained('org/tiny', revision='v1').num_labels, AutoTokenizer.from_pretrained('org/tiny', revision='v1')('goal')['input_ids'])"
    assert python(offline, load) == "3 [2, 5, 3]"


def test_mezzo_reads_what_huggingface_hub_downloaded(hub, environment, folder):
    python(environment | {"HF_HUB_DISABLE_XET": "1"}, "import huggingface_hub; huggingface_hub.snapshot_download('org/tiny', allow_patterns=['*.json', '*.safetensors', '*.txt'])")
    asked = len(hub.asked("cdn")), len(hub.asked("hub", "HEAD"))
    expected = predict(environment, folder).stdout
    assert predict(environment | {"HF_HUB_OFFLINE": "1"}, "org/tiny").stdout == expected
    assert predict(environment, "org/tiny").stdout == expected
    assert (len(hub.asked("cdn")), len(hub.asked("hub", "HEAD"))) == asked, "nothing is fetched again"


def test_a_new_commit_is_fetched_with_its_changed_files_alone(hub, environment, folder, tmp_path):
    assert predict(environment, "org/tiny").returncode == 0
    model = hub.models["org/tiny"]
    model.commit, model.files["config.json"] = "d" * 40, model.files["config.json"].replace(b"sport", b"games")
    done = predict(environment, "org/tiny")
    assert "games" in done.stdout and len(hub.asked("cdn", "GET")) == 1
    assert (cache(tmp_path) / "refs/main").read_text() == "d" * 40
    assert len(list((cache(tmp_path) / "blobs").iterdir())) == 5


@pytest.mark.parametrize("server", ["resumes", "has no ranges", "breaks"])
def test_a_download_is_resumed(server, hub, environment, folder, tmp_path):
    content = hub.models["org/tiny"].files["model.safetensors"]
    blob = cache(tmp_path) / "blobs" / hashlib.sha256(content).hexdigest()
    if server == "breaks":
        hub.breaks_after = 100_000
    else:
        hub.has_ranges = server == "resumes"
        blob.parent.mkdir(parents=True)
        blob.with_name(blob.name + ".incomplete").write_bytes(content[:300_000])
    assert predict(environment, "org/tiny").stdout == predict(environment, folder).stdout
    ranges = [request[4] for request in hub.asked("cdn", "GET")]
    assert ranges == [None, "bytes=100000-"] if server == "breaks" else ["bytes=300000-"]
    assert blob.read_bytes() == content


def test_damaged_bytes_are_refused(hub, environment, tmp_path):
    hub.is_damaged = True
    done = predict(environment, "org/tiny")
    assert done.returncode == 1 and "model.safetensors of org/tiny: the content does not have the hash that the hub states. The download is removed; try again" in done.stderr
    names = {path.name for path in (cache(tmp_path) / "blobs").iterdir()}
    assert len(names) == 3 and not any(name.endswith(".incomplete") for name in names)
    hub.is_damaged = False
    assert predict(environment, "org/tiny").returncode == 0


def test_the_token_goes_to_the_hub_alone(hub, environment, tmp_path):
    hub.models["org/tiny"].token = "secret"
    done = predict(environment, "org/tiny")
    assert done.returncode == 1 and f"org/tiny: there is no such folder, and {hub.address()} has no such model. If it is private, set HF_TOKEN." in done.stderr
    assert predict(environment | {"HF_TOKEN": "wrong"}, "org/tiny").stderr.count("check HF_TOKEN") == 1
    (tmp_path / "hf").mkdir(exist_ok=True)
    (tmp_path / "hf/token").write_text("secret\n")
    hub.requests.clear()
    assert predict(environment, "org/tiny").returncode == 0
    assert {request[3] for request in hub.asked("hub")} == {"Bearer secret"}
    assert {request[3] for request in hub.asked("cdn")} == {None}


@pytest.mark.parametrize("model, message", [
    ("org/tiny@v9", "org/tiny: has no revision 'v9'. See "),
    ("org/nothing", "org/nothing: there is no such folder, and "),
    ("org/gated", "org/gated: access is restricted. Accept the terms at "),
    ("./tiny", "./tiny: there is no such folder."),
    ("a/b/c", "a/b/c: there is no such folder. A name on the Hugging Face Hub is NAME or ORG/NAME, and @REVISION if wanted."),
    ("org/../tiny", "org/../tiny: there is no such folder."),
    ("org/pickle", "org/pickle: has no model.safetensors, only a pickle such as pytorch_model.bin, which may run code. Download it: hf download org/pickle --local-dir DIR. Convert it in its folder: python -c "),
    ("org/tf", "org/tf: has no model.safetensors, only weights of TensorFlow (*.h5). "),
    ("org/flax", "org/flax: has no model.safetensors, only weights of Flax (*.msgpack). "),
    ("org/gguf", "org/gguf: has no model.safetensors, only a file for llama.cpp (*.gguf). "),
    ("org/adapter", "holds a LoRA adapter (adapter_config.json), not a whole model."),
])
def test_what_cannot_be_used_is_said_in_one_line(model, message, hub, environment, folder, tmp_path):
    hub.models["org/gated"] = Model(files_of(folder), is_gated=True)
    small = {name: content for name, content in files_of(folder).items() if name != "model.safetensors"}
    for name, file in dict(pickle="pytorch_model.bin", tf="tf_model.h5", flax="flax_model.msgpack", gguf="model.Q4.gguf").items():
        hub.models[f"org/{name}"] = Model(small | {file: b"weights"})
    hub.models["org/adapter"] = Model({"adapter_config.json": b"{}", "adapter_model.safetensors": b""})
    done = predict(environment, model)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and message in done.stderr, done.stderr
    assert not hub.asked("cdn"), "nothing large is fetched for it"


def test_without_network_the_cache_is_used(hub, environment, tmp_path):
    gone = environment | {"HF_ENDPOINT": "http://127.0.0.1:9"}
    done = predict(gone, "org/tiny", cwd=tmp_path)
    assert done.returncode == 1 and "org/tiny: there is no such folder, and the Hugging Face Hub cannot be reached: Failed to connect to 127.0.0.1 port 9" in done.stderr
    assert ". Check the network, HTTPS_PROXY and HF_ENDPOINT." in done.stderr
    (tmp_path / "outputs").mkdir()
    assert "Did you mean 'outputs'?" in predict(gone, "output", cwd=tmp_path).stderr
    offline = predict(environment | {"HF_HUB_OFFLINE": "1"}, "org/tiny")
    assert offline.returncode == 1 and "HF_HUB_OFFLINE forbids the download." in offline.stderr
    expected = predict(environment, "org/tiny").stdout
    done = predict(gone, "org/tiny")
    assert done.stdout == expected and "warning: org/tiny: the Hugging Face Hub cannot be reached" in done.stderr
    hub.is_down = True
    done = predict(environment, "org/tiny")
    assert done.stdout == expected and f"warning: org/tiny: {hub.address()} answered with status 503. Try again later. The cached commit " in done.stderr
    assert not predict(environment | {"RANK": "1"}, "org/tiny").stderr, "rank 0 has said so"


@pytest.mark.parametrize("server", ["hub", "cdn"])
def test_a_busy_server_is_asked_again(server, hub, environment, folder):
    hub.refusals = [(server, 503, {}), (server, 429, dict(Retry_After="1"))]
    begin = time.monotonic()
    assert predict(environment, "org/tiny").stdout == predict(environment, folder).stdout
    assert not hub.refusals and time.monotonic() - begin > 1, "it waits as long as it is asked to"


def test_requests_that_are_limited_for_long_are_not_waited_for(hub, environment, tmp_path):
    busy = [("hub", 429, dict(Retry_After="300"))]
    hub.refusals = busy * 2
    done = predict(environment, "org/tiny")
    assert done.returncode == 1 and len(hub.refusals) == 1
    assert done.stderr == (f"mezzo predict: org/tiny: there is no such folder, and {hub.address()} limits requests (status 429). "
                           "Try again in 300 seconds, or set HF_TOKEN.\n")
    hub.refusals = []
    expected = predict(environment, "org/tiny").stdout
    hub.refusals = busy * 1
    done = predict(environment | {"HF_TOKEN": "mine"}, "org/tiny")
    assert done.stdout == expected and "(status 429). Try again in 300 seconds. The cached commit " in done.stderr


def test_a_refused_token_is_named_with_its_source(hub, environment, tmp_path):
    hub.refused_token = "expired"
    done = predict(environment | {"HF_TOKEN": "expired"}, "org/tiny")
    assert done.returncode == 1 and done.stderr == f"mezzo predict: org/tiny: {hub.address()} refuses the token of HF_TOKEN. Renew the token, or remove it if the model is public\n"
    (tmp_path / "hf").mkdir(exist_ok=True)
    (tmp_path / "hf/token").write_text("expired\n")
    assert f"refuses the token of {tmp_path / 'hf/token'}. " in predict(environment, "org/tiny").stderr


def test_a_proxy_is_used(hub, environment):
    through = {name: value for name, value in environment.items() if name != "NO_PROXY"}
    done = predict(through | {"HF_ENDPOINT": "http://hub.invalid", "http_proxy": hub.address(), "no_proxy": "127.0.0.1"}, "org/tiny")
    assert done.returncode == 0, done.stderr


def test_a_disk_that_is_full_leaves_a_part_to_resume(hub, environment, folder):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
    done = predict(environment, "org/tiny", preexec_fn=limit)
    assert done.returncode == 1 and ".incomplete: cannot be written: File too large" in done.stderr
    assert predict(environment, "org/tiny").stdout == predict(environment, folder).stdout
    assert hub.asked("cdn", "GET")[-1][4] == "bytes=500000-"


@pytest.mark.parametrize("command, status, said", [
    ([PROGRAM, "predict", "--model", "org/tiny", *TEXT], 128 + signal.SIGINT, "mezzo predict: the download was stopped; the same command resumes it\n"),
    ([sys.executable, "-c", "import mezzo; mezzo.Classifier('org/tiny')"], -signal.SIGINT, "KeyboardInterrupt\n"),
], ids=["program", "package"])  # fmt: skip
def test_ctrl_c_stops_a_download(command, status, said, hub, environment, folder, tmp_path):
    hub.seconds_a_piece = 0.1
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    while not any(path.stat().st_size > 0 for path in cache(tmp_path).rglob("*.incomplete") if path.exists()) or not hub.asked("cdn"):
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=10)
    assert process.returncode == status and stderr.endswith(said), stderr
    hub.seconds_a_piece = 0
    assert predict(environment, "org/tiny").returncode == 0
    assert hub.asked("cdn", "GET")[-1][4] is not None, "resumed"


def test_processes_download_a_model_once(hub, environment, folder):
    hub.seconds_a_piece = 0.005
    started = [subprocess.Popen([PROGRAM, "predict", "--model", "org/tiny", "--precision", "fp32", *TEXT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) for _ in range(3)]
    outputs = {process.communicate(timeout=120)[0] for process in started}
    assert outputs == {predict(environment, folder).stdout}
    assert len(hub.asked("cdn", "GET")) == 1


def test_mezzo_waits_for_the_lock_of_huggingface_hub(hub, environment, folder, tmp_path):
    etag = hashlib.sha256(hub.models["org/tiny"].files["model.safetensors"]).hexdigest()
    path = tmp_path / f"hf/hub/.locks/models--org--tiny/{etag}.lock"
    path.parent.mkdir(parents=True)
    with filelock.FileLock(path):
        process = subprocess.Popen([PROGRAM, "predict", "--model", "org/tiny", "--precision", "fp32", *TEXT], stdout=subprocess.PIPE, text=True, env=environment)
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=2)
        assert not hub.asked("cdn", "GET")
    assert process.communicate(timeout=60)[0] == predict(environment, folder).stdout


def shards(folder, target):
    """The same model, its weights in two files, as transformers writes a large one."""
    weights = load_file(folder / "model.safetensors")
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    target.mkdir()
    for file, part in parts.items():
        save_file({name: weights[name] for name in part}, target / file, {"format": "pt"})
    (target / "model.safetensors.index.json").write_text(json.dumps(dict(metadata={}, weight_map={name: file for file, part in parts.items() for name in part})))
    for file in ("config.json", "vocab.txt", "tokenizer_config.json"):
        (target / file).write_bytes((folder / file).read_bytes())
    return target


def test_weights_in_several_files(hub, environment, folder, tmp_path):
    target = shards(folder, tmp_path / "shards")
    # Weights are mapped: at other addresses of memory products round otherwise.
    scores = pytest.approx(json.loads(predict(environment, folder).stdout)["scores"], abs=1e-6)
    assert json.loads(predict(environment, target).stdout)["scores"] == scores
    hub.models["org/shards"] = Model(files_of(target))
    assert json.loads(predict(environment, "org/shards").stdout)["scores"] == scores
    assert len(hub.asked("cdn", "GET")) == 2
    index = target / "model.safetensors.index.json"
    for file, message in (("../x.safetensors", "which is not a file of this folder"), ("gone.safetensors", "gone.safetensors: is missing, and model.safetensors.index.json names it. Copy or download the model again")):
        index.write_text(json.dumps(dict(weight_map=dict(a=file))))
        done = predict(environment, target)
        assert done.returncode == 1 and message in done.stderr
    hub.models["org/outside"] = Model(files_of(target, **{"model.safetensors.index.json": json.dumps(dict(weight_map=dict(a="../../x"))).encode()}))
    done = predict(environment, "org/outside")
    assert done.returncode == 1 and "which is not a file of this folder" in done.stderr


def test_every_command_takes_a_name(hub, environment, folder, tmp_path):
    data, out, pinned = write_data(tmp_path / "data"), tmp_path / "out", f"org/tiny@{hub.models['org/tiny'].commit}"
    tokens = mezzo(environment, "tokenize", "--model", "org/tiny", input="goal\n")
    assert tokens.stdout == '{"input_ids":[2,5,3]}\n' and not hub.asked("cdn"), "tokenize needs no weights"
    train = ["train", "--model", "org/tiny", "--train", data / "train.jsonl", "--dev-ratio", 0, "--max-steps", 1, "--max-length", 16, "--output"]
    done = mezzo(environment, *train, out, "--lora", 2)
    assert done.returncode == 0, done.stderr
    assert json.loads((out / "run.json").read_text())["settings"]["model"] == pinned
    adapter = json.loads((out / "adapter/adapter_config.json").read_text())
    assert [adapter["base_model_name_or_path"], adapter["revision"]] == pinned.split("@")
    assert f"{pinned.split('/')[1]} trained on" in (out / "report.html").read_text()
    done = mezzo(environment, "train", "--config", out / "run.json", "--output", tmp_path / "again")
    assert done.returncode == 0 and (out / "model.safetensors").read_bytes() == (tmp_path / "again/model.safetensors").read_bytes(), done.stderr
    for command in (["eval", "--data", data / "dev.jsonl"], ["export", "--onnx", tmp_path / "a.onnx"]):
        done = mezzo(environment, *command, "--model", "org/tiny")
        assert done.returncode == 0, done.stderr
    wrong = mezzo(environment, "serve", "--model", "org/tiny@v1", "tiny=out")
    assert wrong.returncode == 2 and "org/tiny@v1 and out are both called tiny" in wrong.stderr
