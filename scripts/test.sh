#!/usr/bin/env bash
# Sets up, builds and tests everything; leaves the program at build/release/bin/volvelle.
#
#   scripts/test.sh           release build with all fast tests, then unit and law tests under the
#                             address and undefined-behaviour sanitizers
#   scripts/test.sh --full    also the law tests that the sanitizers left out, the thread sanitizer,
#                             the address sanitizer with the engine, the whole stack on an older
#                             instruction set, and (if clang 16 is there: scripts/setup.sh --dev)
#                             fuzzing
#
# A stage that fails does not stop the later ones; the exit code is 0 only if all passed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v ccache >/dev/null && export CMAKE_CXX_COMPILER_LAUNCHER=ccache
jobs=$(nproc)
fuzz_seconds=${VOLVELLE_FUZZ_SECONDS:-120}  # per target, in --full
failed=()

stage() {
  local name=$1 start=$SECONDS
  shift
  printf '\n== %s\n' "$name"
  if "$@"; then
    printf '== %s: passed, %d s\n' "$name" $((SECONDS - start))
  else
    failed+=("$name")
    printf '== %s: FAILED, %d s\n' "$name" $((SECONDS - start))
  fi
}

# build PRESET [CMAKE OPTION...]
build() {
  local preset=$1
  shift
  cmake --preset "$preset" "$@" >/dev/null && cmake --build --preset "$preset"
}

# tests PRESET LABELS [CTEST OPTION...]
tests() {
  local preset=$1 labels=$2
  shift 2
  ctest --test-dir "build/$preset" -L "$labels" --no-tests=error --output-on-failure "$@"
}

command_line_tests() {
  VOLVELLE_BIN=$PWD/build/release/bin/volvelle .venv/bin/python -m pytest -q tests/cli
}

# Unit and law tests need no engine. sanitized PRESET [CTEST OPTION...]
sanitized() {
  local preset=$1
  shift
  build "$preset" -DVOLVELLE_RUNTIME=OFF && tests "$preset" '^(unit|law)$' -j "$jobs" "$@"
}

# The engine itself is not instrumented; what our ops do on its threads is. Left out is what measures
# times or figures, minutes of arithmetic that other tests go through as well.
sanitized_engine() {
  build asan -DVOLVELLE_RUNTIME=ON && tests asan '^runtime$' -E 'index_figures|index_study|cost_law|speed'
}

# The kernels' own tests loop over all instruction sets; this is about choosing one.
older_instruction_set() {
  VOLVELLE_ISA=sse4 tests release '^runtime$' -R 'exactness|needle'
}

fuzz() {
  local target name
  cmake -S . -B build/fuzz -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DVOLVELLE_FUZZ=ON \
    -DVOLVELLE_RUNTIME=OFF -DVOLVELLE_TESTS=OFF -DCMAKE_CXX_COMPILER=clang++-16 \
    -DCMAKE_C_COMPILER=clang-16 >/dev/null && cmake --build build/fuzz || return 1
  for target in build/fuzz/bin/*; do
    name=$(basename "$target")
    mkdir -p "build/fuzz/corpus/$name"
    "$target" -max_total_time=$fuzz_seconds -timeout=10 -print_final_stats=1 \
      "build/fuzz/corpus/$name" || return 1
  done
}

# Minutes of arithmetic through code that the other tests run as well.
long_tests='fold_test|fold_precision|mutation|attend_bits|index_synthetic'

full_stages() {
  stage "sanitizers, long tests" tests asan '^(unit|law)$' -R "$long_tests" -j "$jobs"
  # Left out are minutes of arithmetic without threads that attend_* lacks.
  stage "thread sanitizer" sanitized tsan -E 'fold_|mutation|wired|index_synthetic|rope_'
  stage "address sanitizer with the engine" sanitized_engine
  stage "older instruction set" older_instruction_set
  if command -v clang++-16 >/dev/null; then
    stage "fuzzing" fuzz
  else
    printf '\n== fuzzing: skipped, clang++-16 is missing (scripts/setup.sh --dev)\n'
  fi
}

main() {
  local full=0
  case ${1:-} in
    "") ;;
    --full) full=1 ;;
    *) printf 'usage: scripts/test.sh [--full]\n' >&2; exit 2 ;;
  esac
  scripts/setup.sh
  stage "build" build release
  ((${#failed[@]} == 0)) || { printf '\ntest.sh: the build failed, no test ran\n'; exit 1; }
  stage "fast tests" tests release '^(unit|law|compile_fail|abi)$' -j "$jobs"
  # One at a time: the engine's threads want all cores.
  stage "tests on real models" tests release '^runtime$'
  stage "command line tests" command_line_tests
  stage "sanitizers" sanitized asan -E "$long_tests"
  ((full)) && full_stages
  if ((${#failed[@]} > 0)); then
    printf '\ntest.sh: failed in %d s: %s\n' $SECONDS "$(IFS=,; echo "${failed[*]}")"
    exit 1
  fi
  printf '\ntest.sh: all passed in %d s\n' $SECONDS
}

main "$@"
