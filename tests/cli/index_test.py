"""Memories with an index from the command line: fold, ask, append, audit, and what they say of themselves."""
import json
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
                                        ("full+topk(max_error=0.05,cert=exact)", "certified")])
def test_audit_reports_the_class_of_its_reads(spec, kind):
    report = volvelle("audit", "-m", SMOL, "-f", "emma.txt", "--tokens", 1200, "--last", 8,
                      "--memory", spec, "--json", timeout=300).json
    certificate = report["certificate"]
    assert certificate["class"] == kind
    assert 0 < report["bytes_ratio"] < 1
    if kind == "certified":
        assert 0 < certificate["worst_bound"] <= 0.05
        assert certificate["certified_share"] == 1


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
