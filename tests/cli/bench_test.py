"""bench needle (both variants) and bench perplexity."""
import math

import pytest

from conftest import CACHE, SMOL, WIRED, volvelle, wired_text

STREAMING = "sink(4)+window(1020,block=1)"
WIRED_NEEDLE = ["bench", "needle", "-m", WIRED, "--tokens", 2048, "--chunk", 128, "--trials", 1, "-t", 1]


@pytest.fixture(scope="module")
def haystack(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "haystack.txt"
    path.write_text(wired_text(600))
    return path


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "book.txt"
    path.write_text((CACHE / "texts/emma.txt").read_text()[50000:60000])
    return path


def test_needle_memories_and_baselines_share_a_table():
    found = volvelle(*WIRED_NEEDLE, "--distances", "1,16", "--baselines", "--memory",
                     "full;full+kv(k=q8_0,v=q8_0)", "--json").json
    table = {(r["spec"], r["distance"]): r["correct"] for r in found["rows"]}
    assert table == {("full", 1): 1, ("full", 16): 1, ("full+kv(k=q8_0,v=q8_0)", 1): 1,
                     ("full+kv(k=q8_0,v=q8_0)", 16): 1, (STREAMING, 1): 1, (STREAMING, 16): 0,
                     ("isolated", 1): 0, ("isolated", 16): 0}
    assert found["variant"] == "wired" and found["specs"][0] == "full"


def test_needle_fits_the_cost_law():
    found = volvelle(*WIRED_NEEDLE, "--distances", "1", "--json")
    (cost,) = found.json["cost"]
    assert cost["spec"] == "full" and cost["chunk_depths"] == 16
    assert math.isfinite(cost["seconds_per_token_before"]) and cost["r2"] <= 1 + 1e-9
    assert "for each token before it" in found.err


def test_needle_in_a_book(book):
    found = volvelle("bench", "needle", "-m", SMOL, "-f", book, "--tokens", 256, "--chunk", 128,
                     "--distances", "1", "--trials", 1, "--json").json
    assert found["variant"] == "natural"
    (row,) = found["rows"]
    assert (row["spec"], row["distance"], row["trials"]) == ("full", 1, 1)


def test_several_needles_in_a_book(book):
    found = volvelle("bench", "needle", "-m", SMOL, "-f", book, "--tokens", 256, "--chunk", 128,
                     "--needles", 2, "--trials", 1, "--format", "raw", "--json").json
    assert [(r["distance"], r["trials"]) for r in found["rows"]] == [(1, 1), (2, 1)]


@pytest.mark.parametrize("arguments, part", [
    (["-m", WIRED, "--distances", "1", "-f", "emma.txt"], "--variant natural"),
    (["-m", WIRED, "--distances", "1", "--needles", 2], "--variant natural"),
    (["-m", WIRED], "--distances"),
    (["-m", SMOL, "--distances", "1"], "needs a book"),
    (["-m", SMOL, "-f", "emma.txt"], "--needles"),
    (["-m", SMOL, "-f", "emma.txt", "--needles", 2, "--distances", "1"], "--needles"),
    (["-m", SMOL, "-f", "emma.txt", "--distances", "1", "--absent", 1], "--variant wired"),
    (["-m", WIRED, "--distances", "1", "--memory", "full;nonsense"], "nonsense"),
])
def test_needle_flags_that_do_not_fit_are_refused(arguments, part):
    assert part in volvelle("bench", "needle", "--tokens", 512, *arguments, code=2).error


def test_perplexity(haystack):
    found = volvelle("bench", "perplexity", "-m", WIRED, "-f", haystack, "--tokens", 400, "--chunk",
                     150, "-t", 1, "--memory", "full+kv(k=f32,v=f32);full;sink(1)+window(64)",
                     "--against", "llama", "--json").json
    rows = found["rows"]
    assert [r["spec"] for r in rows] == ["full+kv(k=f32,v=f32)", "full", "sink(1)+window(64)",
                                         "llama flash", "llama no-flash"]
    assert found["reference"] == rows[0]["spec"]
    assert all(r["n_targets"] == 399 for r in rows)
    assert rows[0]["kl_mean"] == 0 and rows[0]["top1_agreement"] == 1
    assert math.isclose(rows[0]["perplexity"], math.exp(rows[0]["nll_mean"]), rel_tol=1e-9)
    assert rows[1]["kl_mean"] < 1e-3
    assert [r["bytes_per_token"] for r in rows[:2]] == [2 * 2 * 2 * 64 * 4, 2 * 2 * 2 * 64 * 2]


def test_perplexity_refuses_texts_that_are_too_short(haystack):
    error = volvelle("bench", "perplexity", "-m", WIRED, "-f", haystack, "--tokens", 5000, code=2).error
    assert "601" in error and "5000" in error
