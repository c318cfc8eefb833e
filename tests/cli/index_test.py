"""Memories with an index from the command line: fold, ask, append, audit, and what they say of themselves."""
import json
import math
import os
import pathlib
import struct
import subprocess

import pytest

from conftest import SMOL, WIRED, program, volvelle, wired_text

SPEC = "full+topk(k=64)"


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("indexed")
    (folder / "t.txt").write_text(wired_text(3000))
    memory = folder / "m.vmem"
    volvelle("fold", "-m", WIRED, "-f", folder / "t.txt", "-o", memory, "-t", 1, "--memory", SPEC,
             "--format", "raw")
    return folder / "t.txt", memory


def header_of(path):
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    return json.loads(whole[8:8 + length])


def test_the_file_says_what_is_inside(indexed):
    header = header_of(indexed[1])
    assert header["__metadata__"]["volvelle_format"] == "3"
    assert header["__metadata__"]["spec"] == SPEC
    assert any(name.endswith(".index.tiles") for name in header)
    assert volvelle("inspect", indexed[1], "--verify", "--json").json["spec"] == SPEC


def test_ask_answers_as_the_exact_memory_does_and_says_what_it_read(indexed, tmp_path):
    exact = tmp_path / "exact.vmem"
    volvelle("fold", "-m", WIRED, "-f", indexed[0], "-o", exact, "-t", 1, "--format", "raw")
    question = indexed[0].read_text().split("k")[1][:2]
    asked = [volvelle("ask", memory, f"k{question}", "-t", 1, "-n", 1, "--temp", 0, "--json").json
             for memory in (indexed[1], exact)]
    assert asked[0]["answer"] == asked[1]["answer"]
    certificate = asked[0]["certificate"]
    assert certificate["class"] == "estimated"
    assert "not an error of the answer" in certificate["scope"]
    assert certificate["rows_read_share"] < 0.5
    assert asked[1]["certificate"]["class"] == "exact"


def test_append_keeps_the_index(indexed, tmp_path):
    memory = tmp_path / "m.vmem"
    memory.write_bytes(indexed[1].read_bytes())
    (tmp_path / "more.txt").write_text(wired_text(400, seed=5))
    volvelle("fold", "--append", "-f", tmp_path / "more.txt", "-o", memory, "-t", 1)
    before, after = (header_of(path) for path in (indexed[1], memory))
    tiles = [name for name in before if name.endswith(".index.tiles")]
    assert tiles and all(after[name]["shape"][0] > before[name]["shape"][0] for name in tiles)


def test_short_texts_have_no_index_and_are_exact(tmp_path):
    (tmp_path / "t.txt").write_text(wired_text(300))
    memory = tmp_path / "m.vmem"
    volvelle("fold", "-m", WIRED, "-f", tmp_path / "t.txt", "-o", memory, "-t", 1, "--memory", SPEC,
             "--format", "raw")
    assert header_of(memory)["__metadata__"]["volvelle_format"] == "2"
    asked = volvelle("ask", memory, "k01", "-t", 1, "-n", 1, "--json").json
    assert asked["certificate"]["class"] == "exact"


@pytest.mark.parametrize("spec, kind", [("full+topk(k=64)", "estimated"),
                                        ("full+topk(max_error=0.05,cert=exact)", "certified"),
                                        ("full+topk(max_error=0.05,cert=dither)", "certified")])
def test_audit_reports_the_class_of_its_reads(spec, kind):
    report = volvelle("audit", "-m", SMOL, "-f", "emma.txt", "--tokens", 1200, "--last", 8,
                      "--memory", spec, "--json", timeout=300).json
    certificate = report["certificate"]
    assert certificate["class"] == kind
    assert 0 < report["bytes_ratio"] < 1
    if kind == "certified":
        assert 0 < certificate["worst_bound"] <= 0.05
        assert certificate["certified_share"] == 1
        assert report["violations"] == 0
    else:
        assert report["violations"] is None  # nothing was promised
    assert ("the others have no bound" in certificate["scope"]) == (kind == "estimated")
    assert abs(math.log(report["perplexity"] / report["reference_perplexity"]) -
               report["nll_delta"]) < 1e-9
    assert 0 < report["nll_delta_error"] < 1
    assert report["audited_reads"] > 0
    assert 0 < report["variation_mean"] <= report["variation_max"] < 1
    assert 0 < report["output_error"] < 0.2
    if "dither" in spec:  # what is promised, and with what probability
        assert certificate["probability"]["delta_per_read"] == 1e-9
        assert "do not depend on the dither" in certificate["probability"]["statement"]


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    path = tmp_path_factory.mktemp("calibration") / "c.vmem"
    report = volvelle("calibrate", "-m", SMOL, "-f", "emma.txt", "--tokens", 1600, "-o", path,
                      "--json", timeout=300).json
    return path, report


def test_calibrate_says_what_it_found_about_each_head(calibration):
    path, report = calibration
    assert report["positions"] == 1600
    assert len(report["heads"]) == 90
    # Best in their own moments: the theorem behind the codes.
    assert all(head["predicted_error"] <= head["principal_error"] * 1.001
               for head in report["heads"])
    seen = volvelle("inspect", path, "--verify", "--json").json
    assert seen["kind"] == "calibration" and seen["n_tokens"] == 1


def test_a_calibration_serves_other_texts_up_to_its_last_position(calibration):
    def audit(tokens, **more):
        return volvelle("audit", "-m", SMOL, "-f", "persuasion.txt", "--tokens", tokens, "--last", 8,
                        "--memory", "full+topk(k=64)", "--calibration", calibration[0], "--json",
                        timeout=300, **more)
    report = audit(1500).json
    assert report["certificate"]["class"] == "estimated"
    assert report["audited_reads"] > 0 and report["output_error"] < 0.2
    error = audit(1700, code=1).json["error"]["message"]
    assert "positions below 1600" in error and "grow to" in error


def test_a_calibrated_memory_keeps_its_limit_in_the_file(calibration, tmp_path):
    (tmp_path / "t.txt").write_text(wired_text(450))  # about 1,350 tokens for this model
    (tmp_path / "more.txt").write_text(wired_text(250, seed=3))
    memory = tmp_path / "m.vmem"
    report = volvelle("fold", "-m", SMOL, "-f", tmp_path / "t.txt", "--format", "raw", "-o", memory,
                      "--memory", "full+topk(k=64)", "--calibration", calibration[0], "--json").json
    assert 1024 < report["n_tokens"] < 1600
    asked = volvelle("ask", memory, "What?", "-n", "-1", "--temp", 0, "--json", timeout=300).json
    assert asked["stop_reason"] in ("context", "end")
    error = volvelle("fold", "-f", tmp_path / "more.txt", "-o", memory, "--append", code=1).error
    assert "positions below 1600" in error
    error = volvelle("fold", "-m", SMOL, "-f", "emma.txt", "-c", 4000, "-o", tmp_path / "x.vmem", "--memory",
                     "full+topk(k=64)", "--calibration", calibration[0], code=1).error
    assert "context" in error or "positions below 1600" in error


@pytest.mark.parametrize("model, spec, code, expected", [
    (WIRED, "full+topk(k=128)", 1, "fingerprint"),
    (SMOL, "full+topk(k=64,bits=4)", 1, "does not go with"),
    (SMOL, "full", 2, "no index"),
])
def test_a_calibration_that_does_not_fit_is_refused(calibration, tmp_path, model, spec, code, expected):
    (tmp_path / "t.txt").write_text(wired_text(200))
    error = volvelle("fold", "-m", model, "-f", tmp_path / "t.txt", "--format", "raw", "--memory", spec,
                     "-o", tmp_path / "m.vmem", "--calibration", calibration[0], code=code).error
    assert expected in error
    assert not (tmp_path / "m.vmem").exists()


def test_memories_and_calibrations_are_told_apart(calibration, indexed, tmp_path):
    error = volvelle("ask", calibration[0], "What?", code=2).error
    assert "is a calibration" in error
    error = volvelle("run", "-m", WIRED, "-p", "k01", "-n", 1, "--memory", SPEC, "--calibration",
                     indexed[1], code=2).error
    assert "not a calibration" in error
    error = volvelle("fold", "--from", calibration[0], "-m", SMOL, "-o", tmp_path / "m.vmem", code=2).error
    assert "is a calibration" in error
    assert "no index" in volvelle("calibrate", "-m", SMOL, "-f", "emma.txt", "--memory", "full",
                                  "-o", tmp_path / "c.vmem", code=2).error
    assert "too few" in volvelle("calibrate", "-m", SMOL, "-f", "emma.txt", "--tokens", 100,
                                 "-o", tmp_path / "c.vmem", code=2).error


def test_a_chat_says_what_its_turns_have_read():
    run = subprocess.run([program(), "chat", "-m", SMOL, "--memory", "full+topk(k=64)", "--json", "-n", "4"],
                         input=b"Hello\n", capture_output=True, timeout=120)
    turn = json.loads(run.stdout.decode().splitlines()[0])
    assert turn["certificate"]["class"] == "exact"  # too short for an index


def test_bench_kv_compares_memories_on_the_same_documents():
    report = volvelle("bench", "kv", "-m", SMOL, "--tokens", 600, "--trials", 1, "--questions", 2,
                      "--tasks", "key_value,multi_turn", "--memory", "full;full+topk(k=64)", "-o", "json",
                      timeout=600).json
    rows = report["rows"]
    assert [row["task"] for row in rows] == ["key_value", "multi_turn"] * 2
    assert all(row["n"] == 2 and 0 <= row["score"] <= 1 for row in rows)
    # So short a memory is read exactly, so every answer is the same.
    assert all(row["same_answers"] == 1 and row["score_delta"] == 0 for row in rows)
    error = volvelle("bench", "kv", "-m", SMOL, "--tokens", 8192, "--tasks", "multi_hop", code=1).error
    assert "context" in error
    raw = volvelle("bench", "kv", "-m", WIRED, "--tokens", 300, "--tasks", "key_value", "--trials", 1,
                   "--questions", 1, "-o", "json").json  # a model without a template continues the text
    assert [row["n"] for row in raw["rows"]] == [1, 1]
    assert "chat template" in volvelle("bench", "kv", "-m", WIRED, "--tokens", 300, "--tasks",
                                       "multi_turn", code=2).error


def test_ranks_beyond_the_head_are_named(tmp_path):
    (tmp_path / "t.txt").write_text(wired_text(1500))
    error = volvelle("fold", "-m", WIRED, "-f", tmp_path / "t.txt", "-o", tmp_path / "m.vmem", "-t", 1,
                     "--memory", "full+topk(k=64,rank=4096)", code=2).error
    assert "rank from 1 to the head dimension" in error
    assert not (tmp_path / "m.vmem").exists()


@pytest.mark.parametrize("given, expected", [({}, b"GOMP_SPINCOUNT=1000"),
                                             ({"OMP_WAIT_POLICY": "passive"}, None),
                                             ({"GOMP_SPINCOUNT": "7"}, b"GOMP_SPINCOUNT=7")])
def test_the_engine_spins_shortly_unless_told_otherwise(given, expected):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    chat = subprocess.Popen([program(), "chat", "-m", SMOL], stdin=subprocess.PIPE,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            env={**environment, **given})
    try:
        chat.stderr.read(1)  # it has begun to load
        variables = pathlib.Path(f"/proc/{chat.pid}/environ").read_bytes().split(b"\0")
    finally:
        chat.stdin.close()
        chat.kill()
        chat.wait()
    spins = [v for v in variables if v.startswith(b"GOMP_SPINCOUNT=")]
    assert spins == ([expected] if expected else [])


def test_bench_index_prints_codes_by_rank():
    report = volvelle("bench", "index", "-m", SMOL, "-f", "emma.txt", "--read", "persuasion.txt", "--tokens",
                      1024, "--ranks", "16", "--calibrations", "512", "--queries", 2, "-o", "json",
                      timeout=600).json
    rows = {row["codec"]: row for row in report["rows"] if row["rows"] == 512}
    assert rows["saki"]["recall"] > rows["pca"]["recall"]
    assert 0 < rows["saki"]["measured_error"] < rows["pca"]["measured_error"]
