"""mezzo serve against common causes of failure: files that change while they are read, answers that no client reads, and requests
that two programs could read in two ways. Also a low limit of open files, and a reader of its output that goes away."""
import os
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest
from support import PROGRAM
from test_serve import error_of, folders, make_model, serving  # noqa: F401

HEAD = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = '{"text": "goal"}'


@pytest.fixture(scope="module")
def server(folders):  # noqa: F811
    with serving("--model", folders["topics"], "--precision", "fp32") as served:
        yield served


def answer_to(server, request):
    """All that comes back until the connection is closed, or is silent for a while."""
    received = b""
    with socket.create_connection(("127.0.0.1", server.port), timeout=2) as client:
        client.sendall(request.encode("latin-1"))
        try:
            while piece := client.recv(65536):
                received += piece
        except TimeoutError:
            pass
    return received.decode()


@pytest.mark.parametrize("headers, status", [
    (f"Content-Length: {len(BODY)}\r\nContent-Length: 3\r\n", 400),
    (f"Content-Length: {len(BODY)}\r\nTransfer-Encoding: chunked\r\n", 400),
    ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", 400),
    ("Transfer-Encoding: gzip\r\n", 501),
    (f"X : a\r\nContent-Length: {len(BODY)}\r\n", 400),
    (f"Host: 127.0.0.1\r\nContent-Length: {len(BODY)}\r\n", 400),
])
def test_requests_that_two_programs_read_in_two_ways_are_refused(headers, status, server):
    answer = answer_to(server, HEAD + headers + "\r\n" + BODY)
    assert answer.startswith(f"HTTP/1.1 {status} ") and answer.count("HTTP/1.1 ") == 1, answer


def test_one_without_a_host_is_refused(server):
    assert answer_to(server, HEAD.replace("Host: localhost\r\n", "") + f"Content-Length: {len(BODY)}\r\n\r\n{BODY}").startswith("HTTP/1.1 400 ")


def test_weights_that_change_while_they_are_loaded(tmp_path):
    folder = make_model(tmp_path / "model", hidden_size=256, num_hidden_layers=8, intermediate_size=1024)
    whole = (folder / "model.safetensors").read_bytes()
    with serving("--model", folder, "--precision", "fp32") as server:
        expected, is_over = server.predict({"text": "goal", "logits": True}), threading.Event()

        def copy():
            while not is_over.is_set():
                shutil.copyfile(tmp_path / "whole", folder / "model.safetensors")  # cut off first, as cp does

        (tmp_path / "whole").write_bytes(whole)
        copying = threading.Thread(target=copy)
        copying.start()
        try:
            statuses = {server.reload()[0] for _ in range(80)}
        finally:
            is_over.set()
            copying.join()
        assert statuses <= {200, 500} and server.process.poll() is None
        assert server.predict({"text": "goal", "logits": True}) == expected
        assert server.reload()[0] == 200


def test_a_pipe_among_the_files_does_not_hang_it(tmp_path):
    folder = make_model(tmp_path / "model")
    with serving("--model", folder, "--precision", "fp32") as server:
        (folder / "config.json").unlink()
        os.mkfifo(folder / "config.json")
        assert server.reload()[0] == 500
        server.await_line("config.json: is neither a file nor a folder")
        assert server.stop() == 0


def test_answers_that_nobody_takes_are_bounded(tmp_path):
    folder = make_model(tmp_path / "many", labels=500)
    request = '{"texts": [' + ",".join(['""'] * 1024) + '], "logits": true}'
    with serving("--model", folder, "--precision", "fp32", "--max-queue", 100_000) as server:
        clients = []
        for _ in range(60):  # of some 30 MB each
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", server.port))
            client.settimeout(60)
            client.sendall(f"{HEAD}Content-Length: {len(request)}\r\n\r\n{request}".encode())
            clients.append(client)
        statuses = [client.recv(12)[-3:] for client in clients]
        assert set(statuses) == {b"200", b"503"}, "some have room"
        status = open(f"/proc/{server.process.pid}/status").read()
        assert int(status.split("VmHWM:")[1].split()[0]) < 1_200_000, "256 MB of answers, two in the making, and the program itself"
        assert server.predict({"text": "goal"})["label"], "small ones too, as before"
        for client in clients:
            client.close()
        for _ in range(200):
            if int(open(f"/proc/{server.process.pid}/status").read().split("VmRSS:")[1].split()[0]) < 500_000:
                break
            time.sleep(0.1)
        else:
            pytest.fail("the memory was not given back")


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGHUP])
def test_it_stops_in_good_order_where_nobody_reads_what_it_says(by, folders):  # noqa: F811
    read, write = os.pipe()
    process = subprocess.Popen([PROGRAM, "serve", "--port", "0", "--model", folders["topics"]], stderr=write)
    os.close(write)
    with open(read) as said:
        assert "http://" in said.readline()
        process.send_signal(by)  # at once: from that line on it is heeded
    assert process.wait(timeout=60) == 0


def test_few_files_mean_few_connections_and_it_says_so(folders):  # noqa: F811
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (24, limits[1]))
    try:
        with serving("--model", folders["topics"]) as server:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            server.await_line("warning: 12 connections at most at a time, because of the limit of open files")
            silent = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(40)]
            server.await_line("all 12 connections are in use")
            begin = time.monotonic()
            assert server.predict({"text": "goal"})["label"]
            assert time.monotonic() - begin < 60, "those that say nothing are closed soon"
            for client in silent:
                client.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
