"""A Slurm cluster of this machine alone, with its own ports and folders. It needs root and Debian's slurm-wlm."""
import os
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager

DAEMONS = ["munged", "slurmctld", "slurmd"]
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"

CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={d}
SlurmUser=root
SlurmdUser=root
AuthInfo=socket={folder}/munge.socket,cred_expire=3
StateSaveLocation={folder}/ctld
SlurmdSpoolDir={folder}/d
SlurmctldPidFile={folder}/ctld.pid
SlurmdPidFile={folder}/d.pid
SlurmctldLogFile={folder}/ctld.log
SlurmdLogFile={folder}/d.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
JobRequeue=1
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def missing():
    """The requirement of the cluster that is missing here, or None."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    absent = [name for name in DAEMONS if shutil.which(name, path=PATH) is None]
    return f"{', '.join(absent)} is not installed: bash scripts/setup.sh" if absent else None


def free_ports(count):
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


@contextmanager
def slurm_cluster(folder):
    """Yields the environment for sbatch, srun and their like."""
    for name in "ctld", "d":
        (folder / name).mkdir()
    folder.chmod(0o755)
    host = socket.gethostname().split(".")[0]
    ctld, d = free_ports(2)
    conf, key = folder / "slurm.conf", folder / "munge.key"
    conf.write_text(CONF.format(host=host, ctld=ctld, d=d, folder=folder, cpus=os.cpu_count()))
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    env = {**os.environ, "PATH": PATH, "SLURM_CONF": str(conf)}
    commands = [["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid",
                 f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"],
                ["slurmctld", "-D", "-f", conf], ["slurmd", "-D", "-f", conf, "-N", host]]
    daemons = []
    try:
        for command in commands:
            daemons.append(subprocess.Popen(list(map(str, command)), env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                            stderr=subprocess.DEVNULL))
            time.sleep(0.5)
        deadline = time.monotonic() + 30
        while "idle" not in subprocess.run(["sinfo", "-h", "-o", "%t"], env=env, capture_output=True, text=True).stdout:
            assert time.monotonic() < deadline, (folder / "ctld.log").read_text()
            time.sleep(0.2)
        yield env
    finally:
        subprocess.run(["scancel", "--quiet", "--state=RUNNING"], env=env, capture_output=True)
        subprocess.run(["scancel", "--quiet", "--state=PENDING"], env=env, capture_output=True)
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
