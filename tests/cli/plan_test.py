"""`volvelle plan` against what runs really need."""

import json
import subprocess
import sys

import pytest
from conftest import CACHE, SMOL, WIRED, program, volvelle

GEMMA = "gemma-3-270m-q4_k_m.gguf"


# The peak of a process counts what it was forked from, so a small one starts the program.
MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
sys.stdout.buffer.write(done.stdout)
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def peak_resident_bytes(arguments):
    """The JSON of a run and the most memory that it had resident."""
    command = [sys.executable, "-c", MEASURE, program(), *map(str, arguments), "--json"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    code, kilobytes = map(int, lines[1].split())
    assert code == 0
    return json.loads(lines[0]), kilobytes * 1024


@pytest.mark.parametrize("model, n_bytes, spec", [
    (SMOL, 1500, "full"),
    (SMOL, 9000, "full"),
    (SMOL, 9000, "full+kv(k=f32,v=f32)"),
    (SMOL, 9000, "sink(4)+window(512)"),
    (SMOL, 9000, "full+topk(k=64)"),
    (GEMMA, 6000, "full"),
])
def test_total_is_the_measured_resident_set_within_five_percent(tmp_path, model, n_bytes, spec):
    if model == GEMMA and not (CACHE / "models" / GEMMA).exists():
        pytest.skip("the Gemma model is fetched only when its terms are accepted")
    text = tmp_path / "text.txt"
    text.write_text(("It is a truth universally acknowledged. " * 400)[:n_bytes])
    found, measured = peak_resident_bytes(
        ["run", "-m", model, "-f", text, "-n", 2, "--memory", spec])
    n_tokens = found["n_prompt"] + found["n_predicted"]
    plan = volvelle("plan", "-m", model, "-c", n_tokens, "--memory", spec, "--json").json
    assert abs(plan["bytes"]["total"] - measured) < 0.05 * measured, (plan, measured)
    parts = ["weights", "rows", "index", "scratch", "program"]
    assert sum(plan["bytes"][part] for part in parts) == plan["bytes"]["total"]


def test_rows_are_the_closed_form():
    plan = volvelle("plan", "-m", SMOL, "-c", 1000, "--json").json
    assert plan["bytes"]["rows"] == 1000 * 2 * 30 * 3 * 64 * 2  # T 2 L G D bytes
    assert plan["fits"] and plan["largest_context"] == plan["model_context"] == 8192
    assert plan["estimated"]["decode_ms"] > plan["estimated"]["attention_ms"] > 0


def test_largest_context_is_the_last_one_that_fits():
    plan = volvelle("plan", "-m", SMOL, "-c", 4000, "--json").json
    fixed = plan["bytes"]["total"] - plan["bytes"]["rows"]
    ram = fixed + 23040 * 2000 + 5_000_000  # the fixed part moves a little from run to run
    tight = volvelle("plan", "-m", SMOL, "-c", 4000, "--ram", ram, "--json").json
    assert not tight["fits"]
    assert 1500 < tight["largest_context"] < 3000
    none = volvelle("plan", "-m", SMOL, "-c", 4000, "--ram", 1000, "--json").json
    assert not none["fits"] and none["largest_context"] == 0


def test_absurd_plans_are_refused():
    volvelle("plan", "-m", WIRED, "-c", -1, code=2)
    volvelle("plan", "-m", SMOL, "-c", 10**9, code=2)
    volvelle("plan", "-m", "no-such-model.gguf", "-c", 10, code=1)
    volvelle("plan", "-m", WIRED, "-c", 10, "--memory", "nonsense", code=2)


def test_an_index_is_planned_and_its_crossover_measured():
    dense = volvelle("plan", "-m", SMOL, "-c", 4096, "--json").json
    plan = volvelle("plan", "-m", SMOL, "-c", 4096, "--memory", "full+topk(k=128)", "--json").json
    assert dense["bytes"]["index"] == 0 and dense["estimated"]["index_crossover"] is None
    rows = plan["bytes"]["rows"]
    queries = 512 * 9 * 64 * 2 * 30  # kept until the index is made
    assert 0.15 * rows < plan["bytes"]["index"] - queries < 0.3 * rows
    text = volvelle("plan", "-m", SMOL, "-c", 4096, "--memory", "full+topk(k=128)").out
    assert "reads through the index are" in text
    # Below `min` no row is coded, and the largest context counts codes only where there are any.
    none = volvelle("plan", "-m", SMOL, "-c", 2000, "--memory", "full+topk(k=128,min=4096)",
                    "--json").json
    assert none["bytes"]["index"] == queries and none["estimated"]["index_crossover"] is None
    ram = none["bytes"]["total"] + 23040 * 2500  # rows of about 4,500 tokens
    sizes = [volvelle("plan", "-m", SMOL, "-c", 2000, "--ram", ram, "--memory", spec,
                      "--json").json["largest_context"]
             for spec in ["full+topk(k=128)", "full+topk(k=128,min=8192)"]]
    assert sizes[0] < 0.9 * sizes[1]
