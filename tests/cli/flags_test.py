"""What flags mean together, what is said about wrong ones, and what counts as text."""
import ctypes
import ctypes.util
import json
import os

import pytest
from safetensors.numpy import load_file

from conftest import FACTS, WIRED, model, volvelle, wired_text


@pytest.fixture()
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(FACTS)
    return path


# --- outputs ---------------------------------------------------------------------------------


def test_capture_protects_its_inputs(text, tmp_path):
    base = ["capture", "-m", WIRED, "-f", text, "-t", 1, "-o"]
    assert "input" in volvelle(*base, text, code=2).error
    os.link(text, tmp_path / "link")
    assert "input" in volvelle(*base, tmp_path / "link", code=2).error
    assert text.read_text() == FACTS
    assert "folder" in volvelle(*base, tmp_path, code=2).error
    assert "does not exist" in volvelle(*base, tmp_path / "no/c", code=1).error


def test_capture_protects_its_model(text, tmp_path):
    copy = tmp_path / "model.gguf"
    copy.write_bytes(b"GGUF as it was")
    assert "input" in volvelle("capture", "-m", copy, "-f", text, "-o", copy, code=2).error
    assert copy.read_bytes() == b"GGUF as it was"


# --- flags -----------------------------------------------------------------------------------


@pytest.mark.parametrize("spec, flag, both", [
    ("full+kv(k=f32)", "-ctv", "full+kv(k=f32,v=f32)"),
    ("full+kv(v=f32)", "-ctk", "full+kv(k=f32,v=f32)"),
    ("full+kv(k=f32)", "-ctk", "full+kv(k=f32,v=f16)"),
])
def test_cache_type_that_the_spec_does_not_name_is_no_conflict(text, tmp_path, spec, flag, both):
    folded = volvelle("fold", "-m", WIRED, "-f", text, "-o", tmp_path / "m.vmem", "-t", 1,
                      "--memory", spec, flag, "f32", "--json").json
    assert folded["spec"] == both


def test_cache_type_that_the_spec_names_is_a_conflict(text, tmp_path):
    base = ["fold", "-m", WIRED, "-f", text, "-o", tmp_path / "m.vmem"]
    # f16 is the default too, but here it was written
    assert "-ctv" in volvelle(*base, "--memory", "full+kv(v=f16)", "-ctv", "f32", code=2).error
    assert "-ctk" in volvelle(*base, "--memory", "full+kv(v=f32,k=f32)", "-ctk", "f16",
                              code=2).error


def test_audit_of_one_cache_type_says_what_to_do(text):
    error = volvelle("audit", "-m", WIRED, "-f", text, "--tokens", 9, "--last", 2, "-ctk", "f32",
                     code=2).error
    assert "-ctk" in error and "-ctv f32" in error and "--against full" in error
    volvelle("audit", "-m", WIRED, "-f", text, "--tokens", 9, "--last", 2, "-ctk", "f32", "-t", 1,
             "--against", "full")


@pytest.mark.parametrize("arguments", [["bogus", "--json"], ["--json", "bogus"], ["bogus"],
                                       ["bogus", "-m", "x"]])
def test_unknown_command_is_named_and_the_known_ones_listed(arguments):
    error = volvelle(*arguments, code=2).error
    assert error.startswith("volvelle: ") and "'bogus' is not a command" in error
    for name in ["fold", "ask", "run", "inspect", "capture", "audit", "bench"]:
        assert name in error


def test_unknown_bench_is_named():
    error = volvelle("bench", "bogus", "--json", code=2).error
    assert "'bogus'" in error and "speed, drift, needle" in error


def test_capture_needs_the_tokens_it_was_told(text, tmp_path):
    base = ["capture", "-m", WIRED, "-f", text, "-o", tmp_path / "c", "-t", 1]
    error = volvelle(*base, "--tokens", 500, code=2).error
    assert "500" in error and str(1 + len(FACTS.split())) in error
    assert not (tmp_path / "c").exists()
    assert "--tokens" in volvelle(*base, "--tokens", -1, code=2).error
    assert "--ctx-size" in volvelle(*base, "-c", -1, code=2).error
    volvelle(*base, "--tokens", 3, "-c", 3, code=2)
    assert volvelle(*base, "--tokens", 3, "--json").json["n_tokens"] == 3


def test_no_tokens_have_no_first_one(facts):
    asked = volvelle("ask", facts[1], "k17", "-n", 0, "-t", 1, "--json").json
    assert asked["timings"]["first_token_ms"] is None and asked["n_predicted"] == 0
    assert "first token" not in volvelle("ask", facts[1], "k17", "-n", 0, "-t", 1).err
    ran = volvelle("run", "-m", WIRED, "-p", "f00", "-n", 0, "-t", 1, "--json").json
    assert ran["timings"]["first_token_ms"] is None
    asked = volvelle("ask", facts[1], "k17", "-n", 1, "-t", 1, "--json").json
    assert asked["timings"]["first_token_ms"] > 0


def test_bench_speed_says_how_many_threads():
    base = ["bench", "speed", "-m", WIRED, "-d", 16, "-n", 1, "-p", 0, "-r", 1]
    assert volvelle(*base, "-t", 1, "--json").json["threads"] == 1
    assert volvelle(*base, "--json").json["threads"] == os.cpu_count()
    assert f"{os.cpu_count()} threads" in volvelle(*base).err


# --- texts -----------------------------------------------------------------------------------


def test_byte_order_mark_is_left_out_with_a_note(text, tmp_path):
    (tmp_path / "bom.txt").write_bytes(b"\xef\xbb\xbf" + FACTS.encode())
    memory = tmp_path / "m.vmem"
    base = ["fold", "-m", WIRED, "-o", memory, "-t", 1, "-f"]
    run = volvelle(*base, tmp_path / "bom.txt")
    assert "byte order mark" in run.err and "bom.txt" in run.err
    with_mark = load_file(memory)
    assert bytes(with_mark["text"]) == FACTS.encode()
    assert "byte order mark" not in volvelle(*base, text).err
    assert (load_file(memory)["tokens"] == with_mark["tokens"]).all()
    run = volvelle("run", "-m", WIRED, "-p", "\ufefff00 k01", "-n", 1, "-t", 1, "--json")
    assert run.json["n_prompt"] == 3 and "byte order mark" in run.err
    assert "byte order mark" in volvelle("ask", memory, "\ufeffk17", "-t", 1).err


@pytest.mark.parametrize("blank", ["\ufeff", "\u200b", "\u00a0\n", "\ufeff \u200b\t\u00a0\u3000\r\n"])
def test_text_that_shows_nothing_is_empty(tmp_path, blank):
    (tmp_path / "t.txt").write_text(blank, encoding="utf-8")
    error = volvelle("fold", "-m", WIRED, "-f", tmp_path / "t.txt", "-o", tmp_path / "m", code=1).error
    assert "empty" in error
    volvelle("run", "-m", WIRED, "-p", blank, code=2)
    (tmp_path / "t.txt").write_text(blank + "f00", encoding="utf-8")
    volvelle("fold", "-m", WIRED, "-f", tmp_path / "t.txt", "-o", tmp_path / "m", "-t", 1)


# --- verification ----------------------------------------------------------------------------


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def header_sum(header):
    library = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
    library.XXH3_128bits.restype = Hash128
    library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    found = library.XXH3_128bits(header, len(header))
    return found.high.to_bytes(8, "big") + found.low.to_bytes(8, "big")


def with_metadata(whole, **changes):
    """The memory file with other metadata and sums that fit again."""
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8:8 + length])
    header["__metadata__"].update(changes)
    written = json.dumps(header, separators=(",", ":")).encode()
    assert len(written) <= length, "does not fit into the old header's place"
    head = whole[:8] + written.ljust(length)
    begin = header["checks"]["data_offsets"][0]
    data = whole[8 + length:]
    return head + data[:begin] + header_sum(head) + data[begin + 16:]


@pytest.mark.parametrize("spec", ["full+tail(mean)", "nonsense", "full+kv(k=f32)"])
def test_verify_refuses_an_intact_memory_that_can_not_be_used(facts, tmp_path, spec):
    whole = facts[1].read_bytes()
    forged = tmp_path / "m.vmem"
    forged.write_bytes(with_metadata(whole))
    volvelle("inspect", forged, "--verify")  # so the sums are right
    # The path gives way to the spec, so that the data stays where it is expected.
    shorter = str(model(WIRED))[len(spec) - len("full"):]
    forged.write_bytes(with_metadata(whole, spec=spec, model_path=shorter))
    error = volvelle("inspect", forged, "--verify", code=3).error
    assert "can not be used" in error


def test_verify_refuses_rows_that_the_spec_does_not_go_with(tmp_path):
    (tmp_path / "t.txt").write_text(wired_text(600))
    memory = tmp_path / "m.vmem"
    spec = "sink(1)+window(64)"
    volvelle("fold", "-m", WIRED, "-f", tmp_path / "t.txt", "-o", memory, "-t", 1, "--memory", spec)
    volvelle("inspect", memory, "--verify")
    longer = str(model(WIRED)) + "x" * (len(spec) - len("full"))
    memory.write_bytes(with_metadata(memory.read_bytes(), spec="full", model_path=longer))
    assert "can not be used" in volvelle("inspect", memory, "--verify", code=3).error


def test_help_says_what_is_verified():
    shown = " ".join(volvelle("inspect", "--help").out.split())
    assert "GGUF and captures: the structure" in shown
