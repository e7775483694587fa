"""Runs every target of tests/fuzz under libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer, one after the other or
several side by side. Writes a page of all runs so far.

    cmake --preset fuzz && cmake --build --preset fuzz
    python tools/fuzz.py --seconds 3600 --runs 50000000 --log tests/fuzz/runs.jsonl --results benchmarks/results

An input that ends the program, hangs it or takes too much memory is left in --work. Copy it to tests/fuzz/corpus/TARGET under a
name that begins with "finding". The tests then read it.
"""
import argparse
import collections
import concurrent.futures
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "tests/fuzz/corpus"
LIMITS = ["-timeout=20", "-rss_limit_mb=3000", "-malloc_limit_mb=512", "-max_len=4096", "-detect_leaks=0", "-print_final_stats=1"]

KINDS = {
    "safetensors": ["safetensors"],
    "tokenizer.json": ["tokenizer_json", "tokenizer_json_bert", "tokenizer_json_xlm_roberta"],
    "vocabularies and merges": ["added_tokens", "merges_txt", "vocab_json", "vocab_txt"],
    "sentencepiece models": ["sentencepiece_deberta", "sentencepiece_unigram"],
    "data": ["conll", "csv", "gzip", "json", "jsonl", "parquet", "tsv", "txt", "zstd"],
    "config.json": ["config"],
    "manifest": ["manifest"],
    "run.json": ["run_json"],
    "HTTP bodies": ["predict_body"],
    "what else is read": ["int8", "metrics", "op_policy", "special_tokens_map", "state", "tokenizer_config"],
}

# What makes inputs scarce is switched off: frames that are kept after their function's end, long histories of allocations.
ASAN = ("detect_container_overflow=0:allocator_may_return_null=1:detect_leaks=0:detect_stack_use_after_return=0:malloc_context_size=3"
        ":quarantine_size_mb=16")


def benchmarks_support():
    """benchmarks/support.py, which writes pages."""
    spec = importlib.util.spec_from_file_location("benchmarks_support", ROOT / "benchmarks/support.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fuzz(target, options, commit):
    """The output of a run of libFuzzer at its end."""
    work = options.work / target
    grown = work / "corpus"
    grown.mkdir(parents=True, exist_ok=True)
    command = [options.program, grown, CORPUS / target, *LIMITS, f"-artifact_prefix={work}/", f"-max_total_time={options.seconds}",
               f"-runs={options.runs}"]
    with open(work / "said.txt", "w") as said:
        process = subprocess.Popen(list(map(str, command)), stdout=said, stderr=subprocess.STDOUT,
                                   env={**os.environ, "MEZZO_FUZZ_TARGET": target, "OMP_NUM_THREADS": "1", "ASAN_OPTIONS": ASAN,
                                        "UBSAN_OPTIONS": "print_stacktrace=1",
                                        "ARROW_DEFAULT_MEMORY_POOL": "system"})  # which AddressSanitizer sees
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status = os.waitstatus_to_exitcode(status)
    seconds = usage.ru_utime + usage.ru_stime  # of a processor, which others may use too
    text = (work / "said.txt").read_text(errors="replace")
    inputs = re.findall(r"stat::number_of_executed_units: (\d+)", text) or re.findall(r"^#(\d+)", text, re.MULTILINE)[-1:]
    edges = re.findall(r"cov: (\d+)", text)
    findings = re.findall(r"Test unit written to \S*?((?:crash|timeout|oom|leak|slow-unit)-\w+)", text)
    print(f"{target}: {int(inputs[-1]) if inputs else 0:,} inputs, {seconds:.0f} s, status {status} {' '.join(findings)}", flush=True)
    return dict(target=target, commit=commit, inputs=int(inputs[-1]) if inputs else 0, seconds=round(seconds, 1),
                edges=int(edges[-1]) if edges else 0, corpus=len(list(grown.iterdir())), status=status, processor=benchmarks_support().processor())


def write_page(log, options):
    benchmarks = benchmarks_support()
    runs = collections.defaultdict(list)
    for run in map(json.loads, log.read_text().splitlines()):
        runs[run["target"]].append(run)
    rows = []
    for kind, targets in KINDS.items():
        minutes = sum(run["seconds"] for target in targets for run in runs[target]) / 60
        rows.append([f"**{kind}**", "", f"**{minutes:.0f}**", "", "", ""])
        rows += [[target, f"{sum(run['inputs'] for run in of) / 1e6:.1f}", f"{sum(run['seconds'] for run in of) / 60:.0f}",
                  max(run["edges"] for run in of), max(run["corpus"] for run in of), sum(run["status"] != 0 for run in of)]
                 for target in targets if (of := runs[target])]
    every = [run for of in runs.values() for run in of]
    about = (f"{sum(run['inputs'] for run in every) / 1e6:.0f} million inputs in {sum(run['seconds'] for run in every) / 3600:.1f} hours of one"
             f" processor ({', '.join(sorted({run['processor'] for run in every}))}), of mezzo {', '.join(sorted({run['commit'] for run in every}))}; libFuzzer with AddressSanitizer and"
             " UndefinedBehaviorSanitizer, inputs of at most 4,096 bytes, 20 seconds and 512 MB for one allocation. A run ends with what it finds."
             " What was found and mended lies in [tests/fuzz/corpus](../../tests/fuzz/corpus), which the tests read, cut off at every byte,"
             " and with every bit turned over: each takes at most four times its size in memory, and up to 640 KB for buffers. Larger files of very"
             " many small parts take up to 320 bytes more for each row or value, and 448 or 640 for a token.")
    benchmarks.page(options, "fuzzing", "Files and requests that were made up", about,
                    benchmarks.table(["format", "million inputs", "minutes", "edges reached", "inputs kept", "runs that found something"], rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, default=ROOT / "build/fuzz/bin/fuzz_mezzo")
    parser.add_argument("--targets", nargs="+", choices=sorted(sum(KINDS.values(), [])), metavar="TARGET")
    parser.add_argument("--seconds", type=int, default=3600, help="of each target, at most")
    parser.add_argument("--runs", type=int, default=50_000_000, help="inputs of each target, at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="targets side by side")
    parser.add_argument("--work", type=Path, default=ROOT / "build/fuzz/work", help="folder of what each target grows and finds")
    parser.add_argument("--log", type=Path, help="file that gets a line of JSON for each run, and has those of earlier calls")
    parser.add_argument("--results", type=Path, help="folder of the page, which is of all of --log; none is written where it is left out")
    options = parser.parse_args()
    if not options.program.exists():
        sys.exit(f"fuzz: there is no {options.program}; build it with cmake --preset fuzz && cmake --build --preset fuzz")
    if options.results and not options.log:
        sys.exit("fuzz: a page is of the runs in --log; name a file for it")
    if without := {path.name for path in CORPUS.iterdir()} - set(sum(KINDS.values(), [])):
        sys.exit(f"fuzz: name the kind of {', '.join(sorted(without))} in KINDS")
    targets = options.targets or sorted(sum(KINDS.values(), []))
    commit, failed = benchmarks_support().commit(), False
    options.work.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for run in pool.map(lambda target: fuzz(target, options, commit), targets):
            failed = failed or run["status"] != 0
            if options.log:
                with open(options.log, "a") as log:
                    log.write(json.dumps(run) + "\n")
    if options.results:
        write_page(options.log, options)
    sys.exit(failed)


if __name__ == "__main__":
    main()
