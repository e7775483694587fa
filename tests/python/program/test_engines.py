"""docs/engines.md: the settings that mezzo finds in each engine's environment, how it stops, and the files that it leaves when
it fails."""
import datetime
import http.server
import itertools
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import slurm_cluster
from ranks import environment
from support import PROGRAM, records
from test_launch import finish, free_port
from tiny_runs import flags, model_of, write_data

LIMIT = 120
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2"]
CLEAN = {name: value for name, value in os.environ.items()
         if name not in environment(0, 1, 1) and not name.startswith(("PET_", "KUBEFLOW_", "SKYPILOT_", "SLURM_", "OMPI_", "PMI", "TORCHELASTIC_"))}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def two(data, tmp_path_factory):
    """The model of a run on two ranks of mezzo launch."""
    output = tmp_path_factory.mktemp("two") / "out"
    done = subprocess.run([PROGRAM, "launch", "--nproc", "2", "--", *flags(data, output)], capture_output=True, text=True, timeout=LIMIT, env=CLEAN)
    assert done.returncode == 0, done.stderr
    return model_of(output)


# --- nodes

def kubeflow(node, port):
    return dict(PET_NNODES="2", PET_NPROC_PER_NODE="2", PET_NODE_RANK=str(node), PET_MASTER_ADDR="localhost", PET_MASTER_PORT=str(port))


def skypilot(node, port):
    return dict(SKYPILOT_NUM_NODES="2", SKYPILOT_NUM_GPUS_PER_NODE="2", SKYPILOT_NODE_RANK=str(node), SKYPILOT_NODE_IPS="127.0.0.1\n127.0.0.9", SKYPILOT_TASK_ID=f"sky-{port}")


def slurm(node, port):
    return dict(SLURM_PROCID=str(node), SLURM_STEP_NUM_TASKS="2", SLURM_NODEID=str(node), SLURM_STEP_TASKS_PER_NODE="1(x2)", SLURM_LOCALID="0",
                SLURM_JOB_ID=str(port), SLURM_STEP_NODELIST="localhost,other")


def open_mpi(node, port):
    return dict(OMPI_COMM_WORLD_RANK=str(node), OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_RANK="0", OMPI_COMM_WORLD_LOCAL_SIZE="1",
                MASTER_ADDR="localhost", MASTER_PORT=str(port))


def pytorch_job(node, port):
    """As Kubeflow's operator before version 2."""
    return dict(RANK=str(node), WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=str(port))


@pytest.mark.parametrize("engine", [kubeflow, skypilot, slurm, open_mpi, pytorch_job], ids=lambda engine: engine.__name__)
def test_launchers_of_two_nodes_find_each_other(engine):
    port = free_port()
    nproc = [] if engine in (kubeflow, skypilot) else ["--nproc", "2"]
    command = [PROGRAM, "launch", *nproc, "--", "sh", "-c", "echo $RANK of $WORLD_SIZE on $GROUP_RANK"]
    nodes = [subprocess.Popen(command, env={**CLEAN, **engine(node, port)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for node in range(2)]
    for node, process in enumerate(nodes):
        stdout, stderr = finish(process)
        assert process.returncode == 0, stderr
        assert sorted(stdout.splitlines()) == [f"[rank {rank}] {rank} of 4 on {node}" for rank in (2 * node, 2 * node + 1)]


def launch_alone(variables, *options, script="echo $WORLD_SIZE"):
    return subprocess.run([PROGRAM, "launch", *options, "--", "sh", "-c", script], env={**CLEAN, **variables}, capture_output=True, text=True,
                          timeout=LIMIT)


def test_flags_win_over_the_environment():
    assert launch_alone(kubeflow(0, 1), "--nproc", "3", "--nnodes", "1").stdout.count("3\n") == 3
    assert launch_alone(dict(PET_NNODES="two"), "--nproc", "3", "--nnodes", "1").stdout.count("3\n") == 3
    assert launch_alone(dict(PET_NNODES="1", PET_NPROC_PER_NODE="2")).stdout.count("2\n") == 2
    assert launch_alone(dict(PET_NNODES="1", PET_NPROC_PER_NODE="auto")).stdout.count("1\n") == 1, "one rank where there is no GPU"


@pytest.mark.parametrize("variables, message", [
    (dict(PET_NNODES="2"), "the environment names 2 nodes, but not the number of this node or the host of node 0. Pass --nnodes, --node-rank and --master"),
    (dict(PET_NNODES="two"), "environment variable PET_NNODES is 'two', not a count"),
    (dict(PET_NNODES="3:2", PET_NODE_RANK="0", PET_MASTER_ADDR="localhost"), "--min-nnodes is 3, expected 0 to 2, nnodes"),
    ({**open_mpi(0, 1), "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
     "Open MPI started mezzo launch 2 times on this host. Start it once on each host, with --nproc 2. Or start the command itself, without mezzo launch"),
])
def test_an_environment_that_cannot_be_meant_is_one_line(variables, message):
    done = launch_alone(variables, "--nproc", "1")
    assert (done.returncode, done.stderr) == (2, f"mezzo launch: {message}\n")


# --- progress

class StatusServer:
    """The status server of Kubeflow Trainer: HTTPS, with a certificate of a private authority."""

    def __init__(self, folder, status=200):
        self.posts = []
        for arguments in [f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {folder}/ca.key -out {folder}/ca.crt -subj /CN=ca",
                          f"req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout {folder}/key -out {folder}/csr -subj /CN=localhost -addext subjectAltName=DNS:localhost",
                          f"x509 -req -in {folder}/csr -CA {folder}/ca.crt -CAkey {folder}/ca.key -CAcreateserial -copy_extensions copy -out {folder}/crt"]:
            subprocess.run(["openssl", *arguments.split()], check=True, capture_output=True)
        (folder / "token").write_text("secret\n")

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(handler):
                body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
                self.posts.append((handler.path, handler.headers["Authorization"], handler.headers["Content-Type"], body))
                handler.send_response(status)
                handler.send_header("Content-Length", "0")
                handler.end_headers()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "crt", folder / "key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.variables = dict(KUBEFLOW_TRAINER_SERVER_URL=f"https://localhost:{self.server.server_port}/apis/jobs/topics/status",
                              KUBEFLOW_TRAINER_SERVER_TOKEN=f"{folder}/token", KUBEFLOW_TRAINER_SERVER_CA_CERT=f"{folder}/ca.crt")

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


def fields(body):
    return {name: [sorted(metric) for metric in value][:1] if name == "metrics" else type(value) for name, value in body["trainerStatus"].items()}


def test_progress_is_posted_to_kubeflow_as_transformers_posts_it(data, tmp_path, monkeypatch):
    from transformers.integrations.integration_utils import KubeflowCallback
    with StatusServer(tmp_path) as server:
        done = subprocess.run([PROGRAM, "launch", "--nproc", "2", "--", *flags(data, tmp_path / "out")], env={**CLEAN, **server.variables},
                              capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 0 and "could not be posted" not in done.stderr, done.stderr
        ours = server.posts[:]
        for name, value in server.variables.items():
            monkeypatch.setenv(name, value)
        state = SimpleNamespace(is_world_process_zero=True, max_steps=6, global_step=3, epoch=0.5)
        callback = KubeflowCallback()
        callback.on_train_begin(None, state, None)
        callback.on_train_end(None, state, None)
        theirs = server.posts[len(ours):]
    assert 2 <= len(ours) <= 3, "of one rank, at most one in five seconds, and the last"
    assert [post[:3] for post in (ours[0], ours[-1])] == [post[:3] for post in theirs]
    first, last = (post[3]["trainerStatus"] for post in (ours[0], ours[-1]))
    assert fields(theirs[0][3]).items() <= fields(ours[0][3]).items()
    assert fields(ours[-1][3])["estimatedRemainingSeconds"] == fields(theirs[-1][3])["estimatedRemainingSeconds"]
    assert (first["progressPercentage"], last["progressPercentage"], last["estimatedRemainingSeconds"]) == (0, 100, 0)
    metrics = {metric["name"]: metric["value"] for metric in last["metrics"]}
    assert (metrics["step"], metrics["total_steps"]) == ("6", "6")
    [final] = [record for record in records(tmp_path / "out", "step") if record["step"] == 6]
    assert float(metrics["loss"]) == pytest.approx(final["loss"], rel=1e-5)
    assert float(metrics["dev_accuracy"]) == pytest.approx(records(tmp_path / "out", "eval")[-1]["accuracy"], rel=1e-5)
    assert datetime.datetime.fromisoformat(last["lastUpdatedTime"].replace("Z", "+00:00"))


@pytest.mark.parametrize("broken, reason", [
    (dict(KUBEFLOW_TRAINER_SERVER_CA_CERT=""), "SSL certificate problem"),
    (dict(KUBEFLOW_TRAINER_SERVER_TOKEN="/no/such/token"), "/no/such/token: cannot be read: No such file or directory"),
    (dict(KUBEFLOW_TRAINER_SERVER_URL="http://localhost/"), "the address is not one of https"),
    ({}, "status 403"),
], ids=["certificate", "token", "http", "status"])
def test_a_status_server_that_takes_nothing_is_one_warning(data, two, tmp_path, broken, reason):
    with StatusServer(tmp_path, status=403) as server:
        done = subprocess.run([PROGRAM, "launch", "--nproc", "2", "--", *flags(data, tmp_path / "out", "--quiet")], env={**CLEAN, **server.variables, **broken},
                              capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0 and model_of(tmp_path / "out") == two
    assert re.fullmatch(r"\[rank 0\] warning: the progress could not be posted to http\S+ \(KUBEFLOW_TRAINER_SERVER_URL\): .*; training goes on\n", done.stderr), done.stderr
    assert reason in done.stderr and "secret" not in done.stderr


def test_a_status_server_that_does_not_answer_holds_up_nothing(data, two, tmp_path):
    with socket.create_server(("localhost", 0)) as silent:
        (tmp_path / "token").write_text("secret")
        variables = dict(KUBEFLOW_TRAINER_SERVER_URL=f"https://localhost:{silent.getsockname()[1]}", KUBEFLOW_TRAINER_SERVER_TOKEN=f"{tmp_path}/token")
        done = subprocess.run([PROGRAM, "launch", "--nproc", "2", "--", *flags(data, tmp_path / "out")], env={**CLEAN, **variables}, capture_output=True, text=True,
                              timeout=LIMIT)
    assert done.returncode == 0 and model_of(tmp_path / "out") == two


# --- ranks

def test_mpich_gives_the_same_run(data, two, tmp_path):
    if shutil.which("mpirun.mpich") is None:
        pytest.skip("MPICH is not installed: bash scripts/setup.sh")
    done = subprocess.run(["mpirun.mpich", "-np", "2", PROGRAM, *flags(data, tmp_path / "out")], capture_output=True, text=True, timeout=LIMIT, env=CLEAN)
    assert done.returncode == 0 and "on 2 ranks" in done.stderr, done.stderr
    assert model_of(tmp_path / "out") == two


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if why := slurm_cluster.missing():
        pytest.skip(why)
    with slurm_cluster.slurm_cluster(tmp_path_factory.mktemp("slurm")) as env:
        yield {**CLEAN, **env}


def submit(cluster, folder, script, *options):
    (folder / "job.sh").write_text("#!/bin/sh\n" + script)
    done = subprocess.run(["sbatch", "--parsable", "--ntasks=2", "--overcommit", f"--output={folder}/%a.log", *options, folder / "job.sh"], env=cluster, cwd=folder,
                          capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wait_until(what, condition):
    deadline = time.monotonic() + LIMIT
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited in vain: {what}: " + "".join(path.read_text() for path in what.glob("*.log"))
        time.sleep(0.1)
    return result


def lines_of(path):
    return path.read_text().splitlines() if path.exists() else []


def shell(arguments):
    return " ".join(f"'{argument}'" for argument in arguments)


@pytest.mark.slow
def test_srun_starts_ranks_and_arrays_keep_out_of_each_others_way(cluster, data, two, tmp_path):
    """Both tasks of the array run at a time. Each has two ranks, which meet at a separate port."""
    arguments = shell(flags(data, "OUTPUT")).replace("'OUTPUT'", f'"{tmp_path}/out-$SLURM_ARRAY_TASK_ID"')
    submit(cluster, tmp_path, f'srun --overlap {PROGRAM} {arguments}\necho $? >>"{tmp_path}/ends"\n', "--array=0-1")
    assert wait_until(tmp_path, lambda: len(ends := lines_of(tmp_path / "ends")) == 2 and ends) == ["0", "0"], [p.read_text() for p in tmp_path.glob("*.log")]
    assert [model_of(tmp_path / f"out-{task}") for task in range(2)] == [two, two]


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "launch"])
def test_a_job_that_slurm_signals_saves_and_is_requeued(cluster, data, tmp_path, command):
    """The job script of docs/engines.md. Slurm signals every process: the launcher and its ranks."""
    output = tmp_path / "out"
    arguments = shell(flags(data, output, "--max-steps", 3000, "--eval-every", 0, "--save-every", 0, "--resume", "auto"))
    start = f"srun {PROGRAM} {arguments}" if command == "train" else f"srun --ntasks=1 {PROGRAM} launch --nproc 2 -- {arguments}"
    job = submit(cluster, tmp_path, f'{start}\nstatus=$?\necho $status ${{SLURM_RESTART_COUNT:-0}} >>"{tmp_path}/ends"\n'
                 'if [ $status -eq 138 ]; then scontrol requeue $SLURM_JOB_ID; sleep 60; fi\nexit $status\n', "--requeue", "--open-mode=append")
    wait_until(tmp_path, lambda: (output / "metrics.jsonl").exists() and len(records(output, "step")) > 20)
    subprocess.run(["scancel", "--signal=USR1", job], env=cluster, check=True)

    def ask(*command):
        return subprocess.run(command, env=cluster, capture_output=True, text=True)

    wait_until(tmp_path, lambda: "PENDING" in ask("squeue", "-h", "-j", job, "-o", "%T").stdout)
    assert ask("scontrol", "update", f"JobId={job}", "StartTime=now").returncode == 0, "Slurm itself would wait for two minutes"
    ends = wait_until(tmp_path, lambda: len(ends := lines_of(tmp_path / "ends")) == 2 and ends)
    log = (tmp_path / "4294967294.log").read_text()
    assert ends == ["138 0", "0 1"], log
    stopped = int(re.search(r"stopped after step (\d+); go on with --resume auto$", log, re.M)[1])
    assert f"resumed after step {stopped}\n" in log
    assert [record["step"] for record in records(output, "step")] == list(range(1, 3001))


@pytest.mark.slow  # Slurm signals up to a minute earlier than asked
def test_slurm_signals_a_job_before_its_time_limit(cluster, data, tmp_path):
    output = tmp_path / "out"
    arguments = shell(flags(data, output, "--max-steps", 1000000, "--eval-every", 0, "--save-every", 0, "--resume", "auto"))
    submit(cluster, tmp_path, f'srun --ntasks=1 {PROGRAM} launch --nproc 2 -- {arguments}\necho $? >>"{tmp_path}/ends"\n', "--time=2", "--signal=USR1@30")
    assert wait_until(tmp_path, lambda: lines_of(tmp_path / "ends")) == ["138"]
    log = (tmp_path / "4294967294.log").read_text()
    stopped = int(re.search(r"stopped after step (\d+); go on with --resume auto$", log, re.M)[1])
    assert (output / f"checkpoints/step-{stopped}/manifest.json").exists() and "SIGUSR1" in log


RAY = """
import sys
import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

def worker(settings):
    import mezzo
    mezzo.train(**settings)

folder, *flags = sys.argv[1:]
settings = dict(zip((flag.removeprefix("--").replace("-", "_") for flag in flags[::2]), flags[1::2]))
ray.init(num_cpus=2, include_dashboard=False)
TorchTrainer(worker, train_loop_config=dict(settings, resume="auto"), scaling_config=ScalingConfig(num_workers=2),
             run_config=RunConfig(storage_path=folder, failure_config=FailureConfig(max_failures=1))).fit()
"""


@pytest.mark.slow
def test_ray_train_gives_the_same_run_even_if_a_worker_is_lost(data, two, tmp_path):
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray[train]'")
    output = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", RAY, tmp_path / "ray", *flags(data, output)[1:]], env=CLEAN, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)

    def rank_1():
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if f"--output={output}\0".encode() in path.read_bytes()
                and b"\0RANK=1\0" in (path.parent / "environ").read_bytes()]

    [pid] = wait_until(tmp_path, rank_1)
    os.kill(pid, signal.SIGKILL)
    said = finish(process)[0]
    assert process.returncode == 0 and "the training was killed by SIGKILL" in said, said
    assert model_of(output) == two


# --- stopping

@pytest.mark.slow  # the launcher passes the signal on within half a second
@pytest.mark.parametrize("launcher", [[], ["launch", "--nproc", "2", "--"]], ids=["train", "launch"])
def test_every_process_may_get_the_signal_that_the_launcher_passes_on(data, tmp_path, launcher):
    process = subprocess.Popen([PROGRAM, *launcher, *flags(data, tmp_path / "out", "--max-steps", 1000000, "--eval-every", 0, "--save-every", 0)],
                               stderr=subprocess.PIPE, text=True, env=CLEAN)
    deadline = time.monotonic() + LIMIT
    while not (tmp_path / "out/metrics.jsonl").exists() or len(records(tmp_path / "out", "step")) < 3:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    ranks = [int(child) for child in children if "train" in Path(f"/proc/{child}/cmdline").read_text().split("\0")[1:2]]
    for pid in itertools.chain([process.pid], ranks, [process.pid] if not launcher else []):
        os.kill(pid, signal.SIGUSR1)
    _, stderr = finish(process)
    assert process.returncode == 128 + signal.SIGUSR1, stderr
    assert "go on with --resume auto" in stderr


# --- failures

BROKEN = ["train", "--model", "nowhere/at/all", "--train", "none.csv", "--output", "out"]


def test_a_failure_is_left_where_torchrun_and_kubernetes_look(tmp_path):
    log, error = tmp_path / "termination-log", tmp_path / "error.json"
    log.write_text("the message of the container before, which was longer than that of this one" * 9)
    env = {**CLEAN, "TERMINATION_LOG": str(log), "TORCHELASTIC_ERROR_FILE": str(error)}
    done = subprocess.run([PROGRAM, *BROKEN], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 1 and done.stderr.startswith("mezzo train: nowhere/at/all: ")
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(error))
    assert failure.message["message"] + "\n" == log.read_text() + "\n" == done.stderr
    assert abs(failure.timestamp - time.time()) < LIMIT
    usage = subprocess.run([PROGRAM, "train", "--no-such"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT)
    assert usage.returncode == 2 and log.read_text() + "\n" == usage.stderr


def test_the_launcher_leaves_word_of_the_rank_that_failed_first(tmp_path):
    log, error = tmp_path / "termination-log", tmp_path / "error.json"
    log.touch()
    done = launch_alone(dict(TERMINATION_LOG=str(log), TORCHELASTIC_ERROR_FILE=str(error)), "--nproc", "2",
                        script='[ -z "$TORCHELASTIC_ERROR_FILE" ] && [ $RANK = 1 ] && { echo it is broken >&2; exit 4; }; sleep 60')
    assert done.returncode == 4
    message = json.loads(error.read_text())["message"]["message"]
    assert re.fullmatch(r"mezzo launch: rank 1 \(pid \d+\) ended with exit status 4; it said: it is broken", message)
    assert log.read_text() == message == done.stderr.splitlines()[-1]


def test_no_termination_log_is_made_and_none_is_needed(tmp_path):
    for place in (tmp_path / "none", tmp_path):
        done = subprocess.run([PROGRAM, *BROKEN], cwd=tmp_path, env={**CLEAN, "TERMINATION_LOG": str(place)}, capture_output=True, text=True, timeout=LIMIT)
        assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_torchrun_prints_the_message_of_the_rank_that_failed(tmp_path):
    done = subprocess.run([*TORCHRUN, "--master-port", str(free_port()), PROGRAM, *BROKEN], cwd=tmp_path, env=CLEAN, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 1
    assert re.search(r"Root Cause.*exitcode +: 1 .*traceback : mezzo train: nowhere/at/all: ", done.stderr, re.S), done.stderr
