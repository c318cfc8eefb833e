#!/usr/bin/env bash
# From a fresh clone to a first answer: sets up, builds, folds the opening of a novel, asks about it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cache=${VOLVELLE_CACHE:-$HOME/.cache/volvelle}
folder=build/quickstart
volvelle=build/release/bin/volvelle
model=smollm2-135m-instruct-q4_1.gguf
n_bytes=28500  # about 7,000 tokens: the model reads at most 8,192
question="Who are the main characters of this story?"

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

# The opening of a text, cut behind the last whole paragraph within so many bytes.
opening() {
  awk -v limit="$2" 'BEGIN { RS = ""; ORS = "\n\n" }
    { n += length($0) + 2; if (n > limit) exit; print }' "$1"
}

say "1. Setting up"
scripts/setup.sh

say "2. Building"
command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache
cmake --preset release >/dev/null
cmake --build --preset release --target volvelle_cli

say "3. Reading the opening of Pride and Prejudice once, keeping its memory"
mkdir -p "$folder"
opening "$cache/texts/prideprejudice.txt" "$n_bytes" > "$folder/opening.txt"
"$volvelle" fold -m "$model" -f "$folder/opening.txt" -o "$folder/opening.vmem"

say "4. Asking, without reading it again"
printf 'Q: %s\nA: ' "$question"
"$volvelle" ask "$folder/opening.vmem" "$question" -n 64 --temp 0

say "Next"
cat <<NEXT
  $volvelle ask $folder/opening.vmem "What is this text about?"
  $volvelle inspect $folder/opening.vmem --verify
  $volvelle run -m $model -f $folder/opening.txt -n 64 --memory 'sink(4)+window(1024)'
  $volvelle fold -m YOUR_MODEL.gguf -f YOUR_TEXT.txt -o your.vmem
  $volvelle --help
  A 135M-parameter model is small enough for any computer and makes mistakes; try a larger one.
NEXT
