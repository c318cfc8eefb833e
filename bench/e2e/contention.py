#!/usr/bin/env python3
"""Decode speed alone and beside a busy process, under several settings of the engine's threads.

    bench/e2e/contention.py -m MODEL [--engine NAME=LIBRARY_FOLDER ...] [--rounds 5]

A barrier that spins wastes its time slice when another process wants the core. The settings are run
in turn, round by round, so that the machine's own drift hits all of them; figures are medians over
rounds of the time per decoded token, relative to the first setting alone. The busy process is one
core's worth of integer arithmetic. A fair share beside it on n cores costs n / (n - 0.5) at best.
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import statistics
import subprocess

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "build/release/bin/volvelle"
SETTINGS = {
    "default": {},
    "spin 1000": {"GOMP_SPINCOUNT": "1000"},
    "spin 10000": {"GOMP_SPINCOUNT": "10000"},
    "spin 30000": {"GOMP_SPINCOUNT": "30000"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
    "active": {"OMP_WAIT_POLICY": "active"},
}


def burn():
    x = 1
    while True:
        x = (x * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF


def decode_ms(model, depth, threads, extra):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    environment.update(extra)
    command = [PROGRAM, "bench", "speed", "-m", model, "-d", str(depth), "-n", "32", "-p", "0", "-r",
               "1", "-t", str(threads), "--memory", "full", "--json"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["rows"][0]["decode_ms"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("-d", "--depth", type=int, default=512)
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--engine", action="append", default=[],
                        help="NAME=FOLDER: the engine's libraries of another build")
    arguments = parser.parse_args()
    settings = dict(SETTINGS)
    for engine in arguments.engine:
        name, folder = engine.split("=", 1)
        settings[name] = {"LD_LIBRARY_PATH": folder}

    times = {(name, busy): [] for name in settings for busy in (False, True)}
    for _ in range(arguments.rounds):
        for busy in (False, True):
            other = multiprocessing.Process(target=burn, daemon=True)
            if busy:
                other.start()
            for name, extra in settings.items():
                times[name, busy].append(
                    decode_ms(arguments.model, arguments.depth, arguments.threads, extra))
            if busy:
                other.terminate()
                other.join()

    median = {key: statistics.median(values) for key, values in times.items()}
    base = median[next(iter(settings)), False]
    print("| setting | alone, ms | alone, relative | busy, ms | busy, relative | busy, worst |")
    print("|---|---|---|---|---|---|")
    for name in settings:
        alone, busy = median[name, False], median[name, True]
        print(f"| {name} | {alone:.2f} | {alone / base:.2f} | {busy:.2f} | {busy / base:.2f} | "
              f"{max(times[name, True]) / base:.2f} |")


if __name__ == "__main__":
    main()
