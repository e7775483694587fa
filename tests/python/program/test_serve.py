"""mezzo serve: its answers equal mezzo predict's, also with concurrent requests. It refuses a wrong request with a status and a
reason, and names no path of this machine. It reloads models, stops in good order, and survives broken clients."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import openapi
import pytest
import torch
from support import PROGRAM, mezzo
from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification

WORDS = "goal team law vote rain storm sun wind".split()
SIZES = dict(vocab_size=5 + len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
             max_position_embeddings=64, initializer_range=0.5)


def make_model(folder, kind="single_label_classification", labels=3, seed=0, **sizes):
    torch.manual_seed(seed)
    config = BertConfig(**{**SIZES, **sizes}, id2label={i: f"label {i}" for i in range(labels)}, label2id={f"label {i}": i for i in range(labels)})
    if kind == "token_classification":
        model = BertForTokenClassification(config)
    else:
        config.problem_type = kind
        model = BertForSequenceClassification(config)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]) + "\n")
    return folder


def make_texts(count, seed=0, most=30):
    rng = random.Random(seed)
    return [" ".join(rng.choices([*WORDS, "émile", "雨"], k=rng.randint(1, most))) for _ in range(count)]


class Served:
    """A server, and its lines on stderr."""

    def __init__(self, *flags, **variables):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
        self.process = subprocess.Popen(list(map(str, [PROGRAM, "serve", "--port", 0, *flags])), stderr=subprocess.PIPE, text=True, env=environment)
        self.lines = []
        self.port = None
        self.token = None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if found := re.search(r"http://(.*):(\d+)$", self.lines[-1]):
                self.port = int(found[2])
                break
        assert self.port, self.lines
        threading.Thread(target=lambda: self.lines.extend(line.rstrip("\n") for line in self.process.stderr), daemon=True).start()

    def await_line(self, part):
        for _ in range(1200):
            if any(part in line for line in self.lines):
                return
            time.sleep(0.05)
        pytest.fail(f"{part} not in {self.lines}")

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def ask(self, method, path, body=None, connection=None, **headers):
        """(status, body, headers) of an answer."""
        connection = connection or self.connect()
        if body is not None and "Content-Type" not in headers:
            headers["Content-Type"] = "application/json"
        if self.token and "Authorization" not in headers:
            headers["Authorization"] = f"Bearer {self.token}"
        connection.request(method, path, json.dumps(body) if isinstance(body, (dict, list)) else body, headers)
        response = connection.getresponse()
        answer = response.read().decode()
        openapi.check_answer(method, path, response.status, answer, response.headers["Content-Type"])
        return response.status, answer, response.headers

    def predict(self, body, connection=None):
        status, answer, _ = self.ask("POST", "/predict", body, connection)
        assert status == 200, answer
        openapi.check_request(body if isinstance(body, dict) else json.loads(body))
        return json.loads(answer)

    def reload(self):
        return self.ask("POST", "/reload", {})

    def metrics(self):
        """By name and labels, as Prometheus reads them."""
        status, text, headers = self.ask("GET", "/metrics")
        assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
        found, typed = {}, set()
        for line in text.splitlines():
            if line.startswith("#"):
                assert re.fullmatch(r"# (HELP \w+ \S.*|TYPE \w+ (counter|gauge|histogram))", line), line
                typed.add(line.split()[2])
            else:
                name, value = re.fullmatch(r'(\w+(?:\{\w+="(?:[^"\\]|\\.)*"(?:,\w+="(?:[^"\\]|\\.)*")*\})?) (\S+)', line).groups()
                assert name not in found and re.sub(r"\{.*", "", name) in {kind + end for kind in typed for end in ("", "_bucket", "_sum", "_count")}
                found[name] = float(value)
        return found

    def stop(self, by=signal.SIGTERM):
        self.process.send_signal(by)
        return self.process.wait(timeout=120)


@contextlib.contextmanager
def serving(*flags, **variables):
    served = Served(*flags, **variables)
    try:
        yield served
    finally:
        served.process.kill()
        served.process.wait()


def error_of(answer):
    status, body, headers = answer
    assert headers["Content-Type"] == "application/json" and body.endswith("\n")
    found = json.loads(body)
    assert list(found) == ["error"] and "\n" not in found["error"]
    return status, found["error"]


def expected_of(model, texts, *flags, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row if isinstance(row, dict) else {"text": row}) + "\n" for row in texts))
    return [json.loads(line) for line in mezzo("predict", "--model", model, "--data", rows, "--precision", "fp32", *flags).stdout.splitlines()]


def same(found, expected):
    """Equal except for the last bits of numbers, which depend on the number of texts in a
    product."""
    if isinstance(expected, float):
        return found == pytest.approx(expected, rel=1e-4, abs=1e-6)
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(same(found[name], value) for name, value in expected.items())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return found == expected


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    kinds = dict(topics="single_label_classification", traits="multi_label_classification", stars="regression", names="token_classification")
    return {name: make_model(folder / name, kind, labels=1 if kind == "regression" else 3, seed=i) for i, (name, kind) in enumerate(kinds.items())}


@pytest.fixture(scope="module")
def server(folders):
    with serving("--model", *folders.values(), "--precision", "fp32", "--max-texts", 300, "--max-body-bytes", 100_000) as served:
        yield served


@pytest.mark.parametrize("name", ["topics", "traits", "stars", "names"])
def test_answers_are_what_predict_writes(name, server, folders, tmp_path):
    texts = make_texts(40)
    expected = expected_of(folders[name], texts, "--logits", tmp_path=tmp_path)
    assert len({json.dumps(list(line.values())[1]) for line in expected}) > 1
    assert same(server.predict({"texts": texts, "model": name, "logits": True}), expected)
    for text, line in zip(texts[:5], expected):
        assert same(server.predict({"text": text, "model": name, "logits": True}), line)
    del line["logits"]
    assert same(server.predict({"text": text, "model": name}), line)
    assert server.predict({"texts": [], "model": name}) == []


def test_pairs_and_options_are_those_of_predict(server, folders, tmp_path):
    rows = [{"text": a, "text_pair": b} for a, b in zip(make_texts(9), make_texts(9, seed=1))]
    expected = expected_of(folders["topics"], rows, "--top-k", 2, tmp_path=tmp_path)
    body = {"texts": [row["text"] for row in rows], "text_pairs": [row["text_pair"] for row in rows], "model": "topics", "top_k": 2}
    assert same(server.predict(body), expected) and len(expected[0]["scores"]) == 2
    assert same(server.predict({**rows[3], "model": "topics", "top_k": 2}), expected[3])
    assert server.predict({"text": "goal", "model": "topics", "min_score": 1})["label"] is None
    status, message = error_of(server.ask("POST", "/predict", {"text": "goal", "model": "traits", "min_score": 1}))
    assert status == 400 and "min-score is for single labels" in message


def test_many_ask_at_once_and_each_gets_its_own(server, folders, tmp_path):
    texts = make_texts(400, seed=2)
    expected = {line["text"]: line for line in expected_of(folders["topics"], texts, tmp_path=tmp_path)}
    before = server.metrics()

    def ask_some(i):
        connection = server.connect()  # which is kept
        for text in texts[i::16]:
            assert same(server.predict({"text": text, "model": "topics"}, connection), expected[text])
        many = texts[i : i + 100]
        assert same(server.predict({"texts": many, "model": "topics"}, connection), [expected[text] for text in many])
        return True

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask_some, range(16)))
    after = server.metrics()

    def grown(name):
        return after[name] - before.get(name, 0)

    asked = 400 + sum(len(texts[i : i + 100]) for i in range(16))
    assert grown('mezzo_texts_total{model="topics"}') == grown("mezzo_batch_texts_total") == asked
    assert grown('mezzo_requests_total{path="/predict",code="200"}') == grown("mezzo_request_seconds_count") == 416
    assert after["mezzo_queue_texts"] == 0
    buckets = [value for name, value in after.items() if name.startswith("mezzo_request_seconds_bucket")]
    assert buckets == sorted(buckets) and buckets[-1] == after["mezzo_request_seconds_count"]


def test_it_says_what_it_serves(server):
    status, body, _ = server.ask("GET", "/models")
    models = {model["name"]: model for model in json.loads(body)["models"]}
    assert status == 200 and list(models) == ["topics", "traits", "stars", "names"]
    assert models["topics"] == {"name": "topics", "task": "single_label_classification", "labels": ["label 0", "label 1", "label 2"],
                                "precision": "fp32", "max_length": 64, "reads_pairs": True, "reads_words": False, "reads_windows": False}
    assert models["names"]["task"] == "token_classification" and models["names"]["reads_words"]
    status, body, _ = server.ask("GET", "/healthz")
    assert (status, json.loads(body)) == (200, {"status": "ok"})
    status, body, headers = server.ask("HEAD", "/healthz")
    assert (status, body) == (200, "") and int(headers["Content-Length"]) > 0


WRONG = {
    '{"text": "goal"': (400, "the body: "),
    "": (400, "the body: "),
    '["goal"]': (400, 'the body is an array, expected an object as {"text": "…"}'),
    '{"text": 3, "model": "topics"}': (400, "text is a number, expected a string"),
    '{"texts": "goal", "model": "topics"}': (400, "texts is a string, expected an array of strings"),
    '{"texts": ["goal", null], "model": "topics"}': (400, "texts[1] is null, expected a string"),
    '{"model": "topics"}': (400, "neither text nor texts"),
    '{"text": "a", "texts": ["b"], "model": "topics"}': (400, "both text and texts"),
    '{"text": "a", "text_pairs": ["b"], "model": "topics"}': (400, "the body has text_pairs beside text; rename it to text_pair"),
    '{"texts": ["a"], "text_pair": "b", "model": "topics"}': (400, "rename it to text_pairs"),
    '{"texts": ["a"], "text_pairs": ["b", "c"], "model": "topics"}': (400, "the body has 1 texts and 2 text_pairs; send equal numbers"),
    '{"texts": ["a"], "text_pairs": [], "model": "topics"}': (400, "the body has 1 texts and 0 text_pairs; send equal numbers"),
    '{"text": "a", "text": "b", "model": "topics"}': (400, "the key 'text' occurs twice"),
    '{"texts": [], "model": "stars", "min_score": 0.5}': (400, "top_k and min_score are for labels of texts, but the task of the model is regression"),
    json.dumps({"text": "a", "model": "m" * 50_000}): (404, "…"),
    json.dumps({"text": "a " * 40_000, "model": "names"}): (413, "text 1 has 40000 words, and 32768 are read at most"),
    '{"text": "a", "modell": "topics"}': (400, "Did you mean 'model'?"),
    '{"text": "a", "model": "topics", "top_k": 0}': (400, "top_k is 0, expected a whole number of at least 1"),
    '{"text": "a", "model": "topics", "top_k": 1.5}': (400, "top_k is 1.5"),
    '{"text": "a", "model": "topics", "top_k": 99999999999999999999}': (400, "top_k is"),
    '{"text": "a", "model": "topics", "min_score": 2}': (400, "min_score is 2, expected a number from 0 to 1"),
    '{"text": "a", "model": "topics", "logits": 1}': (400, "logits is a number, expected true or false"),
    '{"text": "a", "model": "stars", "top_k": 1}': (400, "top"),
    '{"text": "a", "text_pair": "b", "model": "names"}': (400, "leave text_pair out"),
    '{"text": "a"}': (400, 'there are several models; name one as "model": topics, traits, stars, names'),
    '{"text": "a", "model": "topic"}': (404, "there is no model 'topic': topics, traits"),
    '{"text": "a", "model": ""}': (400, "model is empty"),
    '{"text": "\\ud800", "model": "topics"}': (400, "the body: "),
    '{"text": "\xff", "model": "topics"}'.encode("latin-1"): (400, "the body: "),
    "[" * 50_000: (400, "the body: "),
    json.dumps({"texts": ["a"] * 301, "model": "topics"}): (413, "301 texts, and at most 300 are taken at once"),
    json.dumps({"text": "a" * 100_000, "model": "topics"}): (413, "the body has more than 100000 bytes"),
}


@pytest.mark.parametrize("body", WRONG, ids=lambda body: str(body[:40]))
def test_what_cannot_be_meant_is_refused(body, server, folders):
    status, message = error_of(server.ask("POST", "/predict", body))
    assert status == WRONG[body][0] and WRONG[body][1] in message
    assert str(folders["topics"].parent) not in message


def test_statuses_say_whose_fault_it_is(server):
    assert error_of(server.ask("POST", "/predict", '{"text": "a"}', **{"Content-Type": "text/plain"})) == (
        415, "the Content-Type is text/plain, expected application/json, in UTF-8")
    for kind in ("application/jsonp", "application/json-patch+json", "application/json; charset=utf-16", ""):
        assert error_of(server.ask("POST", "/predict", '{"text": "a"}', **{"Content-Type": kind}))[0] == 415, kind
    for kind in ("Application/JSON", "application/json;charset=UTF-8", 'application/json; charset="utf-8"'):
        assert server.ask("POST", "/predict", '{"text": "a", "model": "topics"}', **{"Content-Type": kind})[0] == 200, kind
    assert error_of(server.ask("POST", "/predict", "{}", **{"Content-Encoding": "gzip"})) == (415, "the Content-Encoding is gzip; send the body as it is")
    assert error_of(server.ask("GET", "/predict"))[0] == 405
    assert error_of(server.ask("POST", "/reload%00x"))[0] == 404 and error_of(server.ask("GET", "/models%00"))[0] == 404
    assert server.ask("GET", "/predict")[2]["Allow"] == "POST" and server.ask("DELETE", "/models")[2]["Allow"] == "GET, HEAD"
    assert error_of(server.ask("GET", "/../../etc/passwd")) == (404, "unknown path; POST texts to /predict")
    assert error_of(server.ask("POST", "/predict/", "{}"))[0] == 404
    for path in ("/predict", "/reload"):
        assert error_of(server.ask("POST", path, '{"text": "a"}', **{"Sec-Fetch-Site": "cross-site"})) == (403, "requests from pages of other sites are refused")
    counts = server.metrics()
    assert counts['mezzo_requests_total{path="other",code="404"}'] >= 2
    assert not any("passwd" in name for name in counts), "a client must not make it remember paths"


def answer_to(server, request):
    """All that comes back until the connection is closed."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
        client.sendall(request.encode("latin-1"))
        return b"".join(iter(lambda: client.recv(65536), b"")).decode()


PATHS = ["/", "/page.js", "/healthz", "/models", "/metrics", "/predict", "/reload", "/none"]


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil.example", "evillocalhost",
                                  "[evil.example]:80", "evil.example.", "2130706433", "::1", "localhost:80.evil.example", "[::1].evil.example", "[::1",
                                  "evil.example:1.localhost", ":80"])
def test_names_of_other_hosts_are_refused(host, server):
    for path in PATHS:
        body = {"text": "goal", "model": "topics"} if path in ("/predict", "/reload") else None
        status, message = error_of(server.ask("POST" if body else "GET", path, body, Host=host))
        assert status == 403 and message == (
            f"the Host header is '{host}', which is not a name of this server; to allow it, start mezzo serve with --allowed-host NAME")


def test_addresses_and_names_of_this_machine_are_answered(server):
    for host in ("localhost", "LocalHost:8080", "localhost.", "app.localhost:1", "127.0.0.1", "127.0.0.1:80", "10.1.2.3:8080", "0.0.0.0", "[::1]",
                 "[::1]:8080", "[2001:db8::1]", socket.gethostname(), ""):
        assert server.ask("GET", "/healthz", Host=host)[0] == 200, host
    assert answer_to(server, "GET /healthz HTTP/1.0\r\n\r\n").startswith("HTTP/1.1 200 "), "health checks of old proxies name none"


def test_further_names_are_allowed_by_a_flag(folders):
    topics = ("--model", folders["topics"])
    with serving(*topics, "--allowed-host", "mezzo.example.org", "--allowed-host", "Other.example.", "--host", "127.1") as named:
        for host, status in {"mezzo.example.org": 200, "MEZZO.example.org:443": 200, "other.example": 200, "127.1:8080": 200,
                             "example.org": 403, "x.mezzo.example.org": 403, "*": 403}.items():
            assert named.ask("GET", "/healthz", Host=host)[0] == status, host
    with serving(*topics, "--allowed-host", "*") as anyone:
        assert anyone.ask("GET", "/healthz", Host="evil.example")[0] == 200
        assert anyone.ask("POST", "/reload", {}, Host="a", Origin="http://evil.example")[0] == 403
    for bad in ("https://mezzo.example.org", "*.example.org", "a b", ".example.org", "ex.org:80", "name:http", "a..b", "[::1]:80", "-a", "."):
        done = subprocess.run([PROGRAM, "serve", *map(str, topics), "--allowed-host", bad], capture_output=True, text=True, timeout=120)
        assert done.returncode == 2 and done.stderr == (
            f"mezzo serve: --allowed-host '{bad}' is not a host name; pass a whole name without a port, such as mezzo.example.org, or '*' for any\n")


@pytest.mark.parametrize("path", ["/predict", "/reload"])
def test_pages_of_other_sites_are_refused(path, server):
    here = f"127.0.0.1:{server.port}"
    body = {"text": "goal", "model": "topics"} if path == "/predict" else {}
    refused = [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:1"}, {"Origin": f"http://evil.example/{here}"},
               {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site", "Origin": f"http://{here}"}]
    for headers in refused:
        for kind in ("application/json", "text/plain"):
            found = server.ask("POST", path, body, **headers, **{"Content-Type": kind})
            assert error_of(found) == (403, "requests from pages of other sites are refused"), headers
    # What browsers send for a page of the server, also of one behind a proxy that keeps the Host to itself; and what other programs send.
    for headers in ({"Origin": f"http://{here}", "Sec-Fetch-Site": "same-origin"}, {"Origin": f"http://{here}"}, {"Sec-Fetch-Site": "none"}, {},
                    {"Origin": "https://mezzo.example.org", "Sec-Fetch-Site": "same-origin"}, {"Origin": "http://LOCALHOST:80", "Host": "localhost:80"}):
        assert server.ask("POST", path, body, **headers)[0] == 200, headers
    assert error_of(server.ask("POST", path, json.dumps(body), **{"Content-Type": "text/plain"})) == (
        415, "the Content-Type is text/plain, expected application/json, in UTF-8"), "forms of other sites have no other type"
    status, _, headers = server.ask("OPTIONS", path, Origin="http://evil.example", **{"Access-Control-Request-Method": "POST"})
    assert status == 405 and not any(name.startswith("Access-Control") for name in headers)


def test_a_reload_says_that_its_body_is_json(server):
    assert error_of(server.ask("POST", "/reload")) == (415, "the Content-Type is missing, expected application/json, in UTF-8")
    assert server.ask("POST", "/reload", **{"Content-Type": "application/json"})[0] == 200


@pytest.mark.parametrize("has_token", [False, True])
def test_no_client_writes_or_fills_the_metrics(has_token, folders, tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    with serving("--model", f'a"\\{{b={folders["topics"]}', *(["--token-file", tmp_path / "token"] if has_token else [])) as server:
        for i in range(200):
            path = f"/{i}%22%7D%201%0Ainjected%20666%0A" + "x" * 3000
            for broken in ("X : a\r\n", "Transfer-Encoding: gzip\r\n", "Host: localhost\r\n", ""):
                answer = answer_to(server, f"GET {path} HTTP/1.1\r\nHost: {'evil' if i % 50 == 49 else 'localhost'}\r\n{broken}Connection: close\r\n\r\n")
                assert answer.split()[1] in ("400", "401", "403", "404", "501")
            server.ask("M" + str(i), f"/predict{i}")
        server.token = "s3cret" if has_token else None
        server.predict({"text": "goal"})
        counts = server.metrics()
        paths = {re.search(r'path="(.*)",', name)[1] for name in counts if name.startswith("mezzo_requests_total")}
        assert paths <= {*PATHS, "other"} and len(server.ask("GET", "/metrics")[1]) < 10_000
        assert counts['mezzo_texts_total{model="a\\"\\\\{b"}'] == 1


def test_a_body_in_chunks_is_bounded_too(server):
    connection = server.connect()

    def chunks(size):
        yield b'{"model": "topics", "text": "'
        for _ in range(size // 1000):
            yield b"goal " * 200
        yield b'"}'

    connection.request("POST", "/predict", chunks(50_000), {"Content-Type": "application/json"}, encode_chunked=True)
    assert connection.getresponse().status == 200
    connection = server.connect()
    connection.request("POST", "/predict", chunks(300_000), {"Content-Type": "application/json"}, encode_chunked=True)
    assert connection.getresponse().status == 413


def test_broken_clients_leave_it_whole(server):
    rng = random.Random(3)
    begin = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 40\r\n\r\n"
    broken = [b"", b"\r\n\r\n", b"GET", b"GET / HTTP/9.9\r\n\r\n", begin, begin + b'{"text": "go', b"POST /predict HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
              b"POST /predict HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n", b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
              b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 10_000 + b"\r\n", begin.replace(b"40", b"abc") + b"{}",
              b"POST /predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
              *(rng.randbytes(rng.randint(1, 2000)) for _ in range(50))]
    for data in broken:
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
            with contextlib.suppress(OSError):
                client.sendall(data)
    # Clients that go before their answer is there.
    body = json.dumps({"texts": make_texts(200), "model": "topics"}).encode()
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as client:
            client.sendall(begin.replace(b"40", str(len(body)).encode()) + body)
    # One that asks twice before it reads.
    one = json.dumps({"text": "goal", "model": "topics"}).encode()
    request = begin.replace(b"40", str(len(one)).encode()) + one
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(request * 3)
        received = b""
        while received.count(b"HTTP/1.1 200") < 3:
            received += client.recv(65536) or pytest.fail("closed")
    assert server.predict({"text": "goal", "model": "topics"})["label"]
    assert server.process.poll() is None


def test_silent_connections_do_not_keep_others_out(server):
    silent = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(100)]
    for client in silent[:50]:
        client.sendall(b"POST /predict HTTP/1.1\r\nHo")
    assert server.predict({"text": "goal", "model": "topics"})["label"]
    for client in silent:
        client.close()


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A model that takes long over many texts."""
    return make_model(tmp_path_factory.mktemp("slow") / "slow", hidden_size=384, num_hidden_layers=8, num_attention_heads=6, intermediate_size=1536,
                      max_position_embeddings=512, initializer_range=0.02)


LONG = {"texts": [" ".join(WORDS * 64)] * 400}


def wait_until(server, condition):
    for _ in range(1200):
        if condition(server.metrics()):
            return
        time.sleep(0.05)
    pytest.fail("it did not come to that")


def test_a_full_queue_and_late_requests_are_refused_and_short_ones_pass_long_ones(slow):
    with serving("--model", slow, "--precision", "fp32", "--max-queue", 402, "--timeout", 10) as server:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            late = pool.submit(server.ask, "POST", "/predict", LONG)
            wait_until(server, lambda counts: counts["mezzo_queue_texts"] == 400)
            short = pool.submit(server.predict, {"text": "goal"})
            status, message = error_of(refused := server.ask("POST", "/predict", {"texts": ["goal"] * 10}))
            assert (status, message) == (503, "too many texts are waiting; try again later") and refused[2]["Retry-After"] == "1"
            assert short.result()["label"] and not late.done()
            assert error_of(late.result()) == (504, "not done within 10 seconds; send fewer texts, or try again later")
        assert server.metrics()["mezzo_queue_texts"] == 0
        assert server.predict({"text": "goal"})["label"]


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_it_answers_what_is_there_before_it_stops(by, slow, folders):
    with serving("--model", slow, folders["topics"], "--precision", "fp32", "--timeout", 600) as server:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            body = {"texts": LONG["texts"][:30], "model": "slow"}
            kept = server.connect()
            assert server.ask("GET", "/healthz", connection=kept)[0] == 200
            answer = pool.submit(server.predict, body)
            wait_until(server, lambda counts: counts["mezzo_queue_texts"] == 30)
            server.process.send_signal(by)
            server.await_line("stopping")
            time.sleep(0.2)
            with pytest.raises(OSError):
                socket.create_connection(("127.0.0.1", server.port), timeout=5)
            assert not answer.done()
            assert error_of(server.ask("POST", "/predict", {"text": "goal", "model": "topics"}, connection=kept)) == (503, "the server is stopping")
            assert len(answer.result()) == 30
        assert server.process.wait(timeout=60) == 0


def test_a_second_signal_ends_it_at_once(slow):
    with serving("--model", slow, "--precision", "fp32") as server:
        connection = server.connect()
        connection.request("POST", "/predict", json.dumps(LONG), {"Content-Type": "application/json"})
        wait_until(server, lambda counts: counts["mezzo_queue_texts"] == 400)
        server.process.send_signal(signal.SIGTERM)
        server.await_line("stopping")
        time.sleep(0.6)  # sooner, it would be taken for the same signal
        assert server.stop() == -signal.SIGTERM


def test_models_are_loaded_anew(tmp_path):
    folder = make_model(tmp_path / "model", seed=1)
    texts = make_texts(30)

    def expected():
        return expected_of(folder, texts, tmp_path=tmp_path)

    with serving("--model", folder, "--precision", "fp32") as server:
        first = expected()
        assert same(server.predict({"texts": texts}), first)
        other = make_model(tmp_path / "other", seed=2)
        for file in other.iterdir():
            shutil.copyfile(file, folder / file.name)  # in place, as cp does
        assert same(server.predict({"texts": texts}), first), "what is served must not change by itself"
        assert server.reload()[:2] == (200, '{"models":[{"name":"model","reloaded":true}]}\n')
        second = expected()
        assert same(server.predict({"texts": texts}), second) and not same(first, second)
        os.truncate(folder / "model.safetensors", 1000)
        status, body, _ = server.reload()
        assert status == 500 and json.loads(body)["models"] == [{"name": "model", "reloaded": False}]
        assert str(tmp_path) not in body
        server.await_line(str(tmp_path))
        assert same(server.predict({"texts": texts}), second)
        (folder / "config.json").unlink()
        assert server.reload()[0] == 500 and same(server.predict({"texts": texts}), second)


def test_a_model_can_be_loaded_anew_while_it_is_asked(tmp_path):
    folder = make_model(tmp_path / "model", seed=1)
    texts = make_texts(20)
    expected = expected_of(folder, texts, tmp_path=tmp_path)
    with serving("--model", folder, "--precision", "fp32") as server, concurrent.futures.ThreadPoolExecutor(5) as pool:
        is_over = threading.Event()

        def keep_asking(_):
            connection, count = server.connect(), 0
            while not is_over.is_set():
                assert same(server.predict({"texts": texts}, connection), expected)
                count += 1
            return count

        asking = [pool.submit(keep_asking, i) for i in range(4)]
        statuses = [server.reload()[0] for _ in range(20)]
        is_over.set()
        assert statuses == [200] * 20 and all(one.result() > 0 for one in asking)


def test_a_token_is_asked_for(folders, tmp_path):
    (tmp_path / "token").write_text("s3cret-~token\n")
    with serving("--model", folders["topics"], "--token-file", tmp_path / "token") as server:
        for given in ({}, {"Authorization": "Bearer s3cret-~toke"}, {"Authorization": "Bearer s3cret-~tokens"}, {"Authorization": "s3cret-~token"},
                      {"Authorization": "Basic s3cret-~token"}, {"Authorization": "Bearer "}):
            for method, path in (("POST", "/predict"), ("GET", "/metrics"), ("GET", "/models"), ("POST", "/reload")):
                status, message = error_of(found := server.ask(method, path, '{"text": "a"}' if method == "POST" else None, **given))
                assert status == 401 and "Authorization: Bearer" in message and found[2]["WWW-Authenticate"] == "Bearer"
                assert "s3cret" not in message
        assert server.ask("POST", "/predict", {"text": "goal"}, Authorization="bearer s3cret-~token")[0] == 200
        assert server.ask("GET", "/healthz")[0] == 200 and 'id="token"' in server.ask("GET", "/")[1]
        assert not any("s3cret" in line for line in server.lines)


def test_the_page_loads_nothing_from_elsewhere(server):
    status, page, headers = server.ask("GET", "/")
    assert status == 200 and headers["Content-Type"].startswith("text/html") and "default-src 'none'" in headers["Content-Security-Policy"]
    assert "http" not in page and 'id="token"' not in page
    status, script, headers = server.ask("GET", "/page.js")
    assert status == 200 and headers["Content-Type"].startswith("text/javascript") and "innerHTML" not in script and "http" not in script


# The elements of the page, as far as its script uses them. Prints whether the field of the second text is hidden.
STAND_IN_PAGE = """
const elements = {}, none = () => {};
const element = id => elements[id] ??= {hidden: id === "pair", selectedIndex: 0, append: none, replaceChildren: none, on: {}, addEventListener(type, f) { this.on[type] = f; }};
globalThis.document = {getElementById: element, createElement: () => ({})};
const [base, token, script] = process.argv.slice(1), fetch_ = fetch;
globalThis.fetch = (path, options) => fetch_(base + path, options);
(0, eval)(script);
element("token").value = token;
(async () => {
  await new Promise(done => setTimeout(done, 100));
  const before = element("pair").hidden;
  await element("token").on.change();
  console.log(before, element("pair").hidden);
})();
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the page's script")
def test_the_page_offers_a_second_text_once_it_has_the_token(folders, tmp_path):
    (tmp_path / "token").write_text("s3cret\n")
    with serving("--model", folders["topics"], "--token-file", tmp_path / "token") as server:
        script = server.ask("GET", "/page.js")[1]
        def shown(token):
            done = subprocess.run(["node", "-e", STAND_IN_PAGE, f"http://127.0.0.1:{server.port}/", token, script], capture_output=True, text=True, timeout=60)
            return done.stdout.split() or done.stderr
        assert shown("s3cret") == ["true", "false"]
        assert shown("wrong") == ["true", "true"]


def test_the_same_name_twice_and_names(folders, tmp_path):
    shutil.copytree(folders["topics"], tmp_path / "topics")
    done = subprocess.run([PROGRAM, "serve", "--model", folders["topics"], tmp_path / "topics"], capture_output=True, text=True)
    assert done.returncode == 2 and "are both called topics; name them: --model NAME=DIR" in done.stderr
    with serving("--model", f"old={folders['topics']}", f"new={tmp_path / 'topics'}/") as server:
        assert [model["name"] for model in json.loads(server.ask("GET", "/models")[1])["models"]] == ["old", "new"]
        assert server.lines[-1].startswith("old, new on cpu")


def test_what_it_cannot_serve_is_refused_at_the_start(server, folders, tmp_path):
    def refused(*flags, status=1, **variables):
        done = subprocess.run(list(map(str, [PROGRAM, "serve", *flags])), capture_output=True, text=True, timeout=120, env={**os.environ, **variables})
        assert done.returncode == status and done.stderr.count("\n") == 1, done.stderr
        return done.stderr

    topics = ["--model", folders["topics"]]
    assert f"cannot listen on 127.0.0.1:{server.port}: Address already in use; pass another --port" in refused(*topics, "--port", server.port)
    assert "--host no.such.host.invalid" in refused(*topics, "--host", "no.such.host.invalid")
    assert refused(*topics, "--host", "192.0.2.1", "--port", 0) == (
        "mezzo serve: cannot listen on 192.0.2.1:0: Cannot assign requested address; pass an address of this machine as --host, such as 127.0.0.1 or "
        "0.0.0.0\n")
    assert "config.json: cannot be read" in refused("--model", tmp_path)
    assert "--port is 70000, expected 0 to 65535" in refused(*topics, "--port", 70000, status=2)
    assert "--timeout is 0" in refused(*topics, "--timeout", 0, status=2)
    assert "--model" in refused(status=2)
    assert "--model =x: has no name for requests; pass NAME=DIR" in refused("--model", "=x", status=2)
    assert "the model's name is not UTF-8" in refused("--model", os.fsdecode(b"\xff=") + str(folders["topics"]))
    assert "--model: a name has a control character" in refused("--model", f"a\nb={folders['topics']}", status=2)
    assert "start it without mezzo launch" in refused(*topics, status=2, RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "two").write_text("a b\n")
    for name in ("empty", "two", "absent"):
        assert "token" in refused(*topics, "--token-file", tmp_path / name)


def test_int8_without_a_check_is_warned_of(folders):
    with serving("--model", folders["topics"], "--precision", "int8") as server:
        assert server.lines[0] == (f"mezzo serve: warning: {folders['topics']} was not checked in int8; "
                                   f"mezzo check-int8 --model {folders['topics']} --data FILE compares it with fp32")
        assert server.predict({"text": "goal"})["label"]


def test_an_open_address_without_a_token_is_warned_of(folders):
    with serving("--model", folders["topics"], "--host", "0.0.0.0") as server:
        assert server.predict({"text": "goal"})["label"]
        server.await_line("--token-file requires a token")
        assert server.stop() == 0


def test_damaged_weights_are_found_before_they_are_served(tmp_path):
    from safetensors.torch import load_file, save_file

    folder = make_model(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    weights["classifier.weight"][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    done = subprocess.run([PROGRAM, "serve", "--model", folder], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and "classifier.weight holds inf or NaN" in done.stderr
