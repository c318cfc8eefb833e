"""analyze, its page in a real browser, audit --bounds and bench perturb."""
import json
import math
import re
import shutil
import struct
import subprocess
import zlib

import gguf
import numpy as np
import pytest
from conftest import CACHE, SMOL, WIRED, volvelle

BROWSER = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])),
               None)


def browse(*arguments):
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
               "--disable-background-networking", "--disable-component-update", "--disable-sync",
               "--virtual-time-budget=5000", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, timeout=120, check=True).stdout


def pixels(path):
    """RGB of a PNG file, [height, width, 3]."""
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, compressed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert depth == 8 and colour in (2, 6)
        if kind == b"IDAT":
            compressed += body
        at += 12 + length
    step = 3 if colour == 2 else 4
    raw = np.frombuffer(zlib.decompress(compressed), np.uint8).reshape(height, 1 + width * step)
    out = np.zeros((height, width * step), np.uint8)
    for y in range(height):
        line, above = raw[y, 1:].astype(int), out[y - 1].astype(int) if y else np.zeros(width * step, int)
        kind = raw[y, 0]
        if kind == 0:
            out[y] = line
        elif kind == 2:
            out[y] = (line + above) % 256
        else:
            for x in range(width * step):
                left = int(out[y, x - step]) if x >= step else 0
                corner = int(above[x - step]) if x >= step else 0
                if kind == 1:
                    guess = left
                elif kind == 3:
                    guess = (left + above[x]) // 2
                else:
                    p = left + above[x] - corner
                    guess = min((abs(p - left), 0, left), (abs(p - above[x]), 1, above[x]),
                                (abs(p - corner), 2, corner))[2]
                out[y, x] = (line[x] + guess) % 256
    return out.reshape(height, width, step)[:, :, :3]


@pytest.fixture(scope="module")
def analysis(tmp_path_factory):
    page = tmp_path_factory.mktemp("analysis") / "report.html"
    report = volvelle("analyze", "-m", SMOL, "-f", "emma.txt", "--tokens", 1200, "--distance", 256,
                      "--length", 8192, "-o", page, "--json").json
    return page, report


def test_analysis_of_the_configuration_alone():
    found = volvelle("analyze", "-m", SMOL, "--length", 8192, "--json").json
    assert found["heads"] == []
    assert ["not F32" in note for note in found["notes"]] == [True]  # bounds of queries say so
    group, = found["rotations"]
    assert len(group["layers"]) == 30 and group["window"] == 0
    assert group["configuration"]["kernel_alias"]["distance"] == 4141
    assert group["configuration"]["band_alias"] == 438460
    returns = {(r["bands"], r["tolerance"]): r["distance"]
               for r in group["configuration"]["joint_return"]}
    # Of an independent 113-bit program; none below 1e9 for four bands.
    assert [returns[n, 0.1] for n in (1, 2, 3, 4)] == [431482, 3062241, 98213836, None]
    assert found["first_indistinct_position"] == {"bf16": 257, "f16": 2049, "f32": 16777217}
    assert found["pairs"] is None and found["retrieval_distances"] == []
    text = volvelle("analyze", "-m", SMOL, "--length", 8192).out
    assert "4141" in text and "base 100000" in text and "431482, 3062241, 98213836, none" in text
    assert "bf16 257" in text and "by the weights of 270 heads" in text


def float_tensor(path, name):
    """The numbers of an F32 tensor of a GGUF file."""
    reader = gguf.GGUFReader(path)
    tensor, = [t for t in reader.tensors if t.name == name]
    return np.array(tensor.data, np.float64)


def test_bounds_of_queries_are_those_of_the_weights():
    """The largest singular values of each band's rows and of a head's, by numpy."""
    model = CACHE / "models/smollm2-135m-instruct-f32.gguf"
    found = volvelle("analyze", "-m", model, "--length", 64, "--json").json
    assert [(b["layer"], b["head"]) for b in found["query_bounds"]] == [
        (layer, head) for layer in range(30) for head in range(9)]
    for layer in (0, 17):
        weight = float_tensor(model, f"blk.{layer}.attn_q.weight").reshape(9, 64, 576)
        weight = weight * float_tensor(model, f"blk.{layer}.attn_norm.weight") * np.sqrt(576)
        for head in (0, 8):
            bound = found["query_bounds"][9 * layer + head]
            bands = [np.linalg.norm(weight[head, 2 * b:2 * b + 2], 2) for b in range(32)]
            assert bound["band"] == int(np.argmax(bands))
            # Bounds are rounded up, by 1e-6.
            assert bound["longest_band"] == pytest.approx(max(bands), rel=1e-5)
            assert bound["rotated"] == pytest.approx(np.linalg.norm(weight[head], 2), rel=1e-5)
            assert bound["longest_band"] >= max(bands)


def test_analysis_of_a_text(analysis):
    _, report = analysis
    assert len(report["heads"]) == 270
    assert 0.9 < report["median_detrended_r"] <= 1
    for head in report["heads"]:
        assert len(head["predicted"]) == len(head["measured"]) == len(report["distances"])
        assert abs(sum(head["band_shares"]) - 1) < 0.01
        assert 0 < head["query_share"] <= 1
        assert head["recall"]["16"] < head["recall"]["64"] <= 1


def test_retrieval_at_distances(analysis):
    _, report = analysis
    assert report["retrieval_distances"] == [64, 256] and report["pairs"] > 300
    assert report["found_among"] == {"others": 4, "failure": 0.5}
    for head in report["heads"]:
        found = head["retrieval"]
        assert {len(values) for values in found.values()} == {2}
        for i in range(2):
            deviation = np.hypot(found["sigma"][i], found["target_sigma"][i])
            z = (found["matched"][i] - found["background"][i]) / deviation
            # Four digits of logits that may be ten times as large as their difference.
            assert z == pytest.approx(found["z"][i], abs=0.02)
            # Told from that many others in 95 of 100 cases.
            if 0.01 < found["capacity"][i] < 1e6:
                below = 0.5 * math.erfc(-found["z"][i] / math.sqrt(2))
                assert below ** found["capacity"][i] == pytest.approx(0.95, abs=1e-3)
        for name in ("mean_range", "target_range"):
            reach = head[name]
            if reach is not None:
                assert reach["searched"] == 8192 and 0 <= reach["hard"] <= 8192
                # What is proved may reach beyond the search.
                assert (0 <= reach["guaranteed"] <= reach["hard"] + 1
                        or reach["hard"] == reach["searched"])
        if head["alias"] is not None:
            assert 0 < head["alias"]["distance"] <= 8192 and 0 < head["alias"]["value"] <= 1
    # Far from everywhere, and not nowhere.
    assert 0 < sum(h["target_range"]["hard"] > 0 for h in report["heads"]) < 270
    # Whoever is found at all up to a distance has the deviations for it there, with the mean ones.
    for head in report["heads"]:
        if head["target_range"]["hard"] >= 256:
            assert head["retrieval"]["z"][0] > 0.85  # Phi(1) = .5^(1/4) with 15 % for deviations


def test_the_terminal_says_it_too():
    text = volvelle("analyze", "-m", SMOL, "-f", "emma.txt", "--tokens", 300, "--distance", 128).out
    lines = text.splitlines()
    header = next(i for i, line in enumerate(lines) if "distance" in line and "best head" in line)
    assert lines[header + 1].split()[0] == "64" and lines[header + 2].split()[0] == "128"
    assert "look most like themselves again at" in text and "found among 4 others" in text


def test_the_page_stands_alone(analysis):
    page, report = analysis
    text = page.read_text()
    assert "http://" not in text and "https://" not in text and "src=" not in text
    begin = text.index('id="data">') + len('id="data">')
    data = json.loads(text[begin:text.index("</script>", begin)])
    assert data == report


@pytest.mark.skipif(BROWSER is None, reason="no browser; scripts/setup.sh --dev installs one")
def test_the_page_in_a_browser(analysis, tmp_path):
    page, report = analysis
    shown = browse("--dump-dom", page.as_uri()).decode()
    assert 'data-drawn="270"' in shown  # the script ran to its end
    assert shown.count('class="map"') == 10
    text = re.sub("<script.*?</script>", "", shown, flags=re.DOTALL)
    assert "NaN" not in text and "undefined" not in text and "Infinity" not in text
    best = max(report["heads"], key=lambda h: h["induction_z"])
    assert f"Layer {best['layer']}, head {best['head']}" in shown
    assert "4141" in shown and "Retrieval" in shown
    assert "<td>98213836</td>" in text and "<td>438460</td>" in text
    assert "f16 from 2049 on" in text
    # The tables of the head: its figures at each distance, and how far it reaches.
    cells = re.findall(r"<td>([^<]*)</td>", shown[shown.index('id="retrieval"'):])
    assert cells[0] == "64" and cells[7] == "256"
    assert float(cells[3]) == pytest.approx(best["retrieval"]["z"][0], rel=0.01)
    assert float(cells[4]) == pytest.approx(best["retrieval"]["capacity"][0], rel=0.01)
    assert f"such a key, among {report['found_among']['others']} others" in cells
    shot = tmp_path / "page.png"
    browse(f"--screenshot={shot}", "--window-size=1000,2400", page.as_uri())
    image = pixels(shot).astype(int)
    # Heat maps: many shades of blue in cells, drawn over a good part of the page.
    blue = (image[:, :, 2] > image[:, :, 0] + 20) & (image[:, :, 2] >= image[:, :, 1])
    assert blue.mean() > 0.02
    shades = {tuple(p) for p in image[blue][::50]}
    assert len(shades) > 20


@pytest.mark.skipif(BROWSER is None, reason="no browser; scripts/setup.sh --dev installs one")
def test_maps_of_the_page_can_be_switched(analysis, tmp_path):
    """Chooses every entry of every list, and keeps what the map says then."""
    page, report = analysis
    script = """<script>
for (const list of document.querySelectorAll("select")) {
  for (let i = 0; i < list.options.length; ++i) {
    list.selectedIndex = i;
    list.dispatchEvent(new Event("change"));
    const said = document.createElement("div");
    said.className = "said";
    said.textContent = list.options[i].textContent + " | " +
      list.parentElement.querySelector("figcaption").textContent;
    document.body.appendChild(said);
  }
}
</script></body>"""
    switched = tmp_path / "switched.html"
    switched.write_text(page.read_text().replace("</body>", script))
    shown = browse("--dump-dom", switched.as_uri()).decode()
    said = dict(re.findall(r'<div class="said">([^|<]*) \| ([^<]*)</div>', shown))
    assert "if it stood at distance 64" in said and "where it really stood" in said
    assert len(said) == 3 + 8 + 2
    half = math.log(0.5) / math.log(0.95)
    darkest = half * max(h["retrieval"]["capacity"][1] for h in report["heads"])
    dark = float(re.search(r"dark: ([-0-9.e+]+)\.(?: |$)", said["if it stood at distance 256"])[1])
    assert dark == pytest.approx(math.log10(darkest), abs=0.01)


@pytest.mark.skipif(BROWSER is None, reason="no browser; scripts/setup.sh --dev installs one")
def test_the_page_without_a_text(tmp_path):
    page = tmp_path / "page.html"
    volvelle("analyze", "-m", SMOL, "--length", 4096, "-o", page)
    shown = browse("--dump-dom", page.as_uri()).decode()
    assert 'data-drawn="0"' in shown and "Give a text" in shown
    assert shown.count('class="map"') == 1 and "Longest queries" in shown
    assert '<section id="head" hidden' in shown


def test_pages_are_not_written_where_they_can_not_be(tmp_path):
    volvelle("analyze", "-m", SMOL, "-o", tmp_path / "absent" / "page.html", code=1)
    volvelle("analyze", "-m", SMOL, "-o", tmp_path, code=2)


def test_models_without_rotation_are_refused_by_name():
    assert "ALiBi" in volvelle("analyze", "-m", "tiny/bloom.gguf", code=1).error


def test_audit_of_bounds():
    found = volvelle("audit", "--bounds", "-m", SMOL, "-f", "emma.txt", "--tokens", 300, "--queries",
                     1, "--json").json
    assert found["violations"] == 0 and found["perturbations"] > 1e6
    assert {row["edit"] for row in found["rows"]} == {"q8_0", "q4_0", "low_rank", "merge", "shift",
                                                      "memory", "single_band"}
    assert all(control["violations"] > 0 for control in found["controls"])
    assert found["from_weights"]["violations"] == 0
    assert len(found["by_band"]) == 32
    assert {row["edit"] for row in found["weights"]} >= {"evict", "q4_0"}
    assert found["shifted_bands"]["violations"] == 0
    text = volvelle("audit", "--bounds", "-m", SMOL, "-f", "emma.txt", "--tokens", 300, "--queries",
                    1, "-ctk", "q4_0").out
    assert "0 above their bound" in text and "broken on purpose" in text
    lines = [line.split("|") for line in text.split("\n") if "| f32" in line]
    row = {line[1].strip(): line[2:] for line in lines}
    assert row["memory"][1:] == row["q4_0"][1:] and row["memory"][1:] != row["q8_0"][1:]


def test_audit_of_bounds_refuses_what_it_would_not_use():
    for extra in [["--against", "full"], ["--last", 10], ["--chunk", 64], ["-c", 1000],
                  ["--memory", "full+topk(k=8)", "--tokens", 600]]:
        volvelle("audit", "--bounds", "-m", SMOL, "-f", "emma.txt", *extra, code=2)
    volvelle("audit", "-m", SMOL, "-f", "emma.txt", "--queries", 4, code=2)
    volvelle("audit", "--bounds", "-m", SMOL, "-f", "emma.txt", "--tokens", 100, code=2)


def test_an_audit_that_saw_nothing_does_not_pass():
    """Its only layer without a window does not rotate."""
    done = volvelle("audit", "--bounds", "-m", "tiny/cohere2.gguf", "-f", "emma.txt", "--tokens", 300,
                    code=1)
    assert "nothing was audited" in done.out and "not rotated" in done.out


def test_flags_that_would_do_nothing_are_refused():
    volvelle("analyze", "-m", SMOL, "--tokens", 500, code=2)
    volvelle("analyze", "-m", SMOL, "--distance", 64, code=2)
    volvelle("bench", "perturb", "-m", WIRED, "--choices", 3, code=2)


def test_distances_that_do_not_exist_are_no_numbers():
    text = volvelle("analyze", "-m", "tiny/gemma4.gguf", "--length", 64).out
    assert "-1" not in text and "-922" not in text and "never" in text


def test_bench_perturb():
    found = volvelle("bench", "perturb", "-m", WIRED, "--tokens", 512, "--chunk", 64, "--trials", 1,
                     "--sizes", "0.1", "--json").json
    assert [row["damage"] for row in found["rows"]] == (
        ["none"] + 3 * ["remove"] + 3 * ["disturb"] + 4 * ["compress"])
    assert found["rows"][0]["retrieval"] == 1
    assert found["rows"][0]["perplexity"] is None
    volvelle("bench", "perturb", "-m", WIRED, "-f", "emma.txt", code=2)
    volvelle("bench", "perturb", "-m", SMOL, code=2)
    volvelle("bench", "perturb", "-m", WIRED, "--tokens", 300, "--chunk", 64, code=2)
