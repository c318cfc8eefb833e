"""analyze, its page in a real browser, audit --bounds and bench perturb."""
import json
import shutil
import struct
import subprocess
import zlib

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
    assert found["heads"] == [] and found["notes"] == []
    group, = found["rotations"]
    assert len(group["layers"]) == 30 and group["window"] == 0
    assert group["configuration"]["kernel_alias"]["distance"] == 4141
    assert group["configuration"]["band_alias"] == 438460
    text = volvelle("analyze", "-m", SMOL, "--length", 8192).out
    assert "4141" in text and "base 100000" in text


def test_analysis_of_a_text(analysis):
    _, report = analysis
    assert len(report["heads"]) == 270
    assert 0.9 < report["median_detrended_r"] <= 1
    for head in report["heads"]:
        assert len(head["predicted"]) == len(head["measured"]) == len(report["distances"])
        assert abs(sum(head["band_shares"]) - 1) < 0.01
        assert 0 < head["query_share"] <= 1
        assert head["recall"]["16"] < head["recall"]["64"] <= 1


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
    assert shown.count('class="map"') == 8
    best = max(report["heads"], key=lambda h: h["induction_z"])
    assert f"Layer {best['layer']}, head {best['head']}" in shown
    assert "4141" in shown and "Retrieval" in shown
    shot = tmp_path / "page.png"
    browse(f"--screenshot={shot}", "--window-size=1000,2400", page.as_uri())
    image = pixels(shot).astype(int)
    # Heat maps: many shades of blue in cells, drawn over a good part of the page.
    blue = (image[:, :, 2] > image[:, :, 0] + 20) & (image[:, :, 2] >= image[:, :, 1])
    assert blue.mean() > 0.02
    shades = {tuple(p) for p in image[blue][::50]}
    assert len(shades) > 20


def test_pages_are_not_written_where_they_can_not_be(tmp_path):
    volvelle("analyze", "-m", SMOL, "-o", tmp_path / "absent" / "page.html", code=1)
    volvelle("analyze", "-m", SMOL, "-o", tmp_path, code=2)


def test_models_without_rotation_are_refused_by_name():
    assert "ALiBi" in volvelle("analyze", "-m", "tiny/bloom.gguf", code=1).error


def test_audit_of_bounds():
    found = volvelle("audit", "--bounds", "-m", SMOL, "-f", "emma.txt", "--tokens", 300, "--queries",
                     1, "--json").json
    assert found["violations"] == 0 and found["perturbations"] > 1e6
    assert {row["edit"] for row in found["rows"]} == {"q8_0", "q4_0", "low_rank", "merge",
                                                      "single_band"}
    assert all(control["violations"] > 0 for control in found["controls"])
    assert found["from_weights"]["violations"] == 0
    assert len(found["by_band"]) == 32
    assert {row["edit"] for row in found["weights"]} >= {"evict", "q4_0"}
    text = volvelle("audit", "--bounds", "-m", SMOL, "-f", "emma.txt", "--tokens", 300, "--queries",
                    1).out
    assert "0 above their bound" in text and "broken on purpose" in text


def test_audit_of_bounds_refuses_what_it_would_not_use():
    for extra in [["--against", "full"], ["--last", 10], ["--chunk", 64], ["-c", 1000],
                  ["--memory", "full+topk(k=8)"], ["-ctk", "q8_0"]]:
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
