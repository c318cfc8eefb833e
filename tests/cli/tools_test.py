"""inspect, capture, audit and the benches."""
import csv
import io

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from conftest import FACTS, SMOL, WIRED, model, volvelle, wired_text


@pytest.fixture(scope="module")
def haystack(tmp_path_factory):
    path = tmp_path_factory.mktemp("haystack") / "haystack.txt"
    path.write_text(wired_text(1200))
    return path


def test_inspect_memory(facts):
    text, memory, folded = facts
    shown = volvelle("inspect", memory, "--json").json
    assert shown["kind"] == "memory" and shown["verified"] is None
    for key in ["n_tokens", "kv_bytes", "file_bytes", "spec", "model_fingerprint", "chunk"]:
        assert shown[key] == folded[key]
    assert shown["layers"] == [
        {"n_kv_heads": 2, "head_dim_k": 64, "head_dim_v": 64, "window": 0}] * 2
    assert volvelle("inspect", memory, "--verify", "--json").json["verified"] is True
    assert f"{folded['n_tokens']}" in volvelle("inspect", memory).out


def test_inspect_model(facts):
    shown = volvelle("inspect", WIRED, "--verify", "--json").json
    assert shown["kind"] == "gguf" and shown["architecture"] == "llama"
    assert (shown["n_layers"], shown["n_heads"], shown["n_kv_heads"]) == (2, 4, 2)
    assert shown["context_length"] == 262144
    assert shown["fingerprint"] == facts[2]["model_fingerprint"]
    assert sum(shown["tensor_types"].values()) == shown["n_tensors"]
    assert shown["file_bytes"] == model(WIRED).stat().st_size


def test_inspect_says_what_it_does_not_know(facts, tmp_path):
    volvelle("inspect", facts[0], code=1)
    volvelle("inspect", tmp_path / "absent", code=1)


def test_capture_shapes_layers_and_tokens(haystack, tmp_path):
    out = tmp_path / "c.safetensors"
    report = volvelle("capture", "-m", WIRED, "-f", haystack, "-o", out, "--layers", "1-1", "-c",
                      300, "-ub", 64, "-t", 1, "--json").json
    assert (report["n_tokens"], report["text_tokens"]) == (300, 1201)
    tensors = {k: v for k, v in load_file(out).items() if not k.startswith("_fill")}
    assert {k: v.shape for k, v in tensors.items()} == {
        "layer.1.q": (4, 300, 64), "layer.1.k": (2, 300, 64), "layer.1.v": (2, 300, 64),
        "tokens": (300,)}
    assert tensors["tokens"].dtype == np.int32 and tensors["layer.1.q"].dtype == np.float32
    with safe_open(out, "numpy") as file:
        assert file.metadata()["model_fingerprint"] == report["model_fingerprint"]
    assert volvelle("inspect", out, "--json").json["kind"] == "safetensors"


def test_captured_queries_and_keys_explain_the_retriever(tmp_path):
    """Independent of our attention: NumPy's softmax of captured q and k puts the question's weight
    in layer 1 on the value behind its key."""
    (tmp_path / "t.txt").write_text(f"{FACTS} k17")
    out = tmp_path / "c.safetensors"
    volvelle("capture", "-m", WIRED, "-f", tmp_path / "t.txt", "-o", out, "-t", 1)
    tensors = load_file(out)
    q, k = tensors["layer.1.q"].astype(np.float64), tensors["layer.1.k"].astype(np.float64)
    value_at = 1 + FACTS.split().index("v42")
    for head in range(4):
        scores = k[head // 2] @ q[head, -1] / 8  # 1 / sqrt(64)
        weights = np.exp(scores - scores.max())
        assert weights[value_at] / weights.sum() > 0.999


@pytest.mark.parametrize("layers", ["2", "1-0", "0-2", "a", "-", "0-", "1-1-1"])
def test_capture_refuses_layers_that_are_not_there(haystack, tmp_path, layers):
    volvelle("capture", "-m", WIRED, "-f", haystack, "-o", tmp_path / "c", f"--layers={layers}",
             code=2)


AUDIT_KEYS = {"kl_mean", "kl_p99", "top1_agreement", "two_path_kl", "n", "logit_delta_max", "spec",
              "output_error", "violations", "bytes_ratio"}


def test_audit_of_the_full_memory_against_llama(haystack):
    found = volvelle("audit", "-m", WIRED, "-f", haystack, "--tokens", 600, "--last", 40, "-t", 1,
                     "--json").json
    assert AUDIT_KEYS <= found.keys()
    assert (found["against"], found["n"], found["bytes_ratio"]) == ("llama", 40, 1.0)
    assert found["top1_agreement"] == 1.0
    # The wired model's answers have margins of 16 nats: any exact path gives the same distribution.
    assert found["kl_mean"] < 1e-6 and found["two_path_kl"] < 1e-6


def test_audit_of_a_window_against_the_exact_read(haystack):
    found = volvelle("audit", "-m", WIRED, "-f", haystack, "--tokens", 600, "--last", 40, "-t", 1,
                     "--memory", "sink(4)+window(128)", "--json").json
    assert (found["against"], found["spec"]) == ("full", "sink(4)+window(128)")
    assert found["two_path_kl"] is None and found["violations"] is None
    # Sinks and 128 to 191 rows of 560 to 600, by the definition of the window.
    seen, rows = 0, 0
    for t in range(560, 600):
        begin = max(4, 64 * ((t + 1 - 128) // 64))
        seen, rows = seen + 4 + t + 1 - begin, rows + t + 1
    assert found["bytes_ratio"] == pytest.approx(seen / rows, rel=1e-12)


def test_audit_of_full_against_itself_is_zero(haystack):
    found = volvelle("audit", "-m", WIRED, "-f", haystack, "--tokens", 300, "--last", 20, "-t", 1,
                     "--against", "full", "--json").json
    assert found["kl_mean"] == 0 and found["logit_delta_max"] == 0


def test_audit_needs_enough_text(haystack):
    message = volvelle("audit", "-m", WIRED, "-f", haystack, "--tokens", 5000, code=2).error
    assert "1201" in message and "5000" in message


NEEDLE = ["bench", "needle", "-m", WIRED, "--tokens", 1024, "--chunk", 64, "--distances", "1,8,16",
          "--trials", 2, "-t", 1]


def test_bench_needle():
    found = volvelle(*NEEDLE, "--json").json
    assert [(r["distance"], r["trials"], r["correct"]) for r in found["rows"]] == [
        (1, 2, 2), (8, 2, 2), (16, 2, 2)]
    lost = volvelle(*NEEDLE, "--memory", "sink(1)+window(128)", "--json").json
    assert [r["correct"] for r in lost["rows"]] == [2, 0, 0]


def test_tables_hold_what_json_holds():
    rows = volvelle(*NEEDLE, "--json").json["rows"]
    as_csv = list(csv.DictReader(io.StringIO(volvelle(*NEEDLE, "-o", "csv").out)))
    assert as_csv == [{k: str(v) for k, v in row.items()} for row in rows]
    as_md = volvelle(*NEEDLE, "-o", "md").out.splitlines()
    assert len(as_md) == 2 + len(rows) and all(line.startswith("|") for line in as_md)
    assert volvelle(*NEEDLE, "-o", "json").json["rows"] == rows


def test_bench_needle_refuses_other_models_and_distances():
    volvelle("bench", "needle", "-m", SMOL, "--variant", "wired", "--distances", "1", "--tokens",
             1024, code=1)
    volvelle("bench", "needle", "-m", WIRED, "--distances", "99", "--tokens", 1024, code=2)
    volvelle("bench", "needle", "-m", WIRED, "--distances", "1,x", "--tokens", 1024, code=2)


def test_bench_drift(haystack):
    found = volvelle("bench", "drift", "-m", WIRED, "-f", haystack, "--tokens", 512, "--chunk", 128,
                     "-t", 1, "--json").json
    assert [row["depth"] for row in found["rows"]] == [0, 1, 2, 3]
    for row in found["rows"]:
        assert abs(row["nll_delta_mean"]) < 1e-3
        assert row["kv_rel_l2"] < 1e-3  # f16 rows against f16 rows


def test_bench_speed(tmp_path):
    found = volvelle("bench", "speed", "-m", WIRED, "-d", "64,256", "-n", 4, "-p", 32, "-r", 2, "-t",
                     1, "--memory", "full;sink(4)+window(64)", "--against", "llama", "--json").json
    rows = found["rows"]
    assert {row["depth"] for row in rows} == {64, 256}
    assert {"full", "sink(4)+window(64)"} < {row["spec"] for row in rows}
    for row in rows:
        assert row["decode_ms"] > 0 and row["prefill_tps"] > 0
    volvelle("bench", "speed", "-m", SMOL, "-d", "100000", code=1)
    volvelle("bench", "speed", "-m", WIRED, "-d", "64", "--memory", "full;;full", code=2)
