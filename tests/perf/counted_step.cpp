// One call of attend() for tools/count_instructions.py, which counts the instructions inside of
// volvelle_counted_step() only.
//
//   counted_step GROUP KV_HEADS DIM TYPE ROWS TOKENS
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/convert.hpp"
#include "volvelle/attention/attend.hpp"
#include "volvelle/kernels/isa.hpp"

extern "C" __attribute__((noinline)) void volvelle_counted_step(
    const volvelle::AttendTask* task, volvelle::AttendWorkspace* workspace) {
  attend(*task, *workspace, 0, 1);
}

namespace volvelle {
namespace {

/// Rows of a fixed sequence of numbers in [-1, 1).
std::vector<std::byte> rows_of(ElementType type, int dim, std::int64_t n) {
  const std::size_t bytes = row_bytes(type, dim);
  std::vector<std::byte> rows(bytes * static_cast<std::size_t>(n));
  std::vector<float> row(static_cast<std::size_t>(dim));
  std::uint32_t state = 1;
  for (std::int64_t r = 0; r < n; ++r) {
    for (float& x : row) {
      state = state * 1664525u + 1013904223u;
      x = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
    }
    convert_row(row.data(), rows.data() + static_cast<std::size_t>(r) * bytes, type, dim);
  }
  return rows;
}

int run(int argc, char** argv) {
  const auto type = argc == 7 ? parse_element_type(argv[4]) : std::nullopt;
  if (!type || !select_isa().ok()) {
    std::fprintf(stderr, "usage: counted_step GROUP KV_HEADS DIM TYPE ROWS TOKENS\n");
    return 2;
  }
  AttentionShape shape;
  shape.n_kv_heads = std::atoi(argv[2]);
  shape.n_heads = shape.n_kv_heads * std::atoi(argv[1]);
  shape.head_dim_k = shape.head_dim_v = std::atoi(argv[3]);
  shape.k_type = shape.v_type = *type;
  shape.scale = 0.125f;
  const std::int64_t n = std::atoll(argv[5]);
  const std::int64_t tokens = std::atoll(argv[6]);
  const std::vector<std::byte> rows = rows_of(*type, shape.head_dim_k, n * shape.n_kv_heads);
  const KeyValueSegment segment{0,
                                n,
                                rows.data(),
                                rows.data(),
                                rows.size() / static_cast<std::size_t>(shape.n_kv_heads),
                                rows.size() / static_cast<std::size_t>(shape.n_kv_heads)};
  std::vector<VisibleRows> visible;
  for (std::int64_t t = n - tokens; t < n; ++t) visible.push_back({0, 0, t + 1});
  const std::ptrdiff_t width = static_cast<std::ptrdiff_t>(shape.n_heads) * shape.head_dim_k;
  std::vector<float> q(static_cast<std::size_t>(tokens * width), 0.25f);
  std::vector<float> out(q.size());
  AttendTask task;
  task.shape = shape;
  task.segments = {&segment, 1};
  task.visible = visible;
  task.q = q.data();
  task.out = out.data();
  task.q_head_stride = task.out_head_stride = shape.head_dim_k;
  task.q_token_stride = task.out_token_stride = width;
  AttendWorkspace workspace =
      AttendWorkspace::create(1, shape.n_heads, shape.head_dim_k, shape.head_dim_v).value();
  attend(task, workspace, 0, 1);  // chooses the instruction set
  volvelle_counted_step(&task, &workspace);
  return workspace.take_not_finite() ? 1 : 0;
}

}  // namespace
}  // namespace volvelle

int main(int argc, char** argv) { return volvelle::run(argc, argv); }
