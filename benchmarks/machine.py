"""What benchmarks say about where they ran."""
import os
import platform
from pathlib import Path


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def machine():
    return f"{processor()}, {os.cpu_count()} cores"
