// Bytes and times of a planned memory.
//
//   rows        sum over groups of  bytes of the group's layers per token * rows at most
//   program     (anonymous memory after a ubatch) - (rows then) - scratch + (mapped files) -
//   weights decode      (time of a step - its attention) + attention of every layer at the planned
//   depth fold        chunks * (time of a ubatch - its attention) + attention of every chunk, which
//   is
//               affine in the prefix until a window is full (the cost law of a causal pass)
//
// Cost: one ubatch, a few decoding steps, and for every distinct layer shape a few calls of
// attention on rows of one layer.
#include "volvelle/eval/plan.hpp"

#include <algorithm>
#include <string>
#include <thread>

#include "base/clock.hpp"
#include "base/result_macros.hpp"
#include "eval/index_timing.hpp"
#include "eval/process_memory.hpp"
#include "volvelle/runtime/session.hpp"

namespace volvelle {
namespace {

constexpr int kDecodeSteps = 8;

/// What one run of the model showed.
struct Calibration {
  double prefill_seconds = 0;  // of n_prefill tokens, without attention
  std::int64_t n_prefill = 0;
  double decode_seconds = 0;  // of one token, without attention
  std::uint64_t row_bytes = 0;
  ResidentBytes resident;  // with these rows
};

/// Seconds of a step outside of attention.
Result<double> time_step(Session& session, ContextMemory& memory, std::span<const TokenId> tokens) {
  session.take_attention_seconds();
  const auto start = Clock::now();
  VOLVELLE_RETURN_IF_ERROR(session.step(memory, tokens, Logits::kLast));
  return std::max(0.0, seconds_since(start) - session.take_attention_seconds());
}

Result<Calibration> calibrate(Session& session, const PlanOptions& options) {
  VOLVELLE_ASSIGN_OR_RETURN(ContextMemory memory, session.begin(options.spec));
  const ModelInfo& info = session.model().info();
  Calibration found;
  found.n_prefill =
      std::min<std::int64_t>({options.n_ubatch, options.n_tokens, info.context_length});
  std::vector<TokenId> tokens;
  for (std::int64_t i = 0; i < found.n_prefill; ++i)
    tokens.push_back(static_cast<TokenId>((i * 7919 + 1) % info.n_vocab));
  // One token first: it brings the weights into memory.
  VOLVELLE_RETURN_IF_ERROR(session.step(memory, std::span(tokens).first(1), Logits::kLast));
  VOLVELLE_RETURN_IF_ERROR(memory.truncate(0));
  VOLVELLE_ASSIGN_OR_RETURN(found.prefill_seconds, time_step(session, memory, tokens));
  const std::int64_t steps =
      std::min<std::int64_t>(kDecodeSteps, info.context_length - memory.length());
  for (std::int64_t i = 0; i < steps; ++i) {
    VOLVELLE_ASSIGN_OR_RETURN(const double seconds,
                              time_step(session, memory, std::span(tokens).first(1)));
    found.decode_seconds += seconds / static_cast<double>(steps);
  }
  found.row_bytes = memory.row_bytes_used();
  VOLVELLE_ASSIGN_OR_RETURN(found.resident, resident_bytes());
  return found;
}

/// Threads as the session uses them.
int threads_of(int wanted) {
  return wanted > 0 ? wanted : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

struct AttentionTimes {
  double decode_seconds = 0;
  double first_chunk_seconds = 0;  // of one ubatch of prefill
  double last_chunk_seconds = 0;
};

/// Sums over all layers; layers of one shape are timed once and counted as often as they are read.
Result<AttentionTimes> time_layers(const Model& model, const PlanOptions& options,
                                   AttendWorkspace& workspace) {
  const ModelInfo& info = model.info();
  VOLVELLE_ASSIGN_OR_RETURN(const KvTypes types, kv_types(options.spec));
  AttentionTimes times;
  std::vector<LayerShape> seen;
  for (const LayerShape& shape : info.layers) {
    if (shape.n_kv_heads == 0 || std::find(seen.begin(), seen.end(), shape) != seen.end()) continue;
    if (options.cancel.cancelled()) return Error{ErrorCode::kCancelled, "plan: interrupted"};
    seen.push_back(shape);
    int readers = 0;
    for (std::size_t i = 0; i < info.layers.size(); ++i)
      readers += info.layers[i] == shape ? info.layer_readers[i] : 0;
    const WindowRule rule = window_rule(options.spec, shape.window);
    const std::int64_t depth =
        rule.tokens == 0 ? options.n_tokens
                         : std::min(options.n_tokens, rule.sinks + rule.tokens + rule.block);
    TimingRequest request{
        shape, info.n_heads, types.k, types.v, depth, 1, threads_of(options.n_threads)};
    VOLVELLE_ASSIGN_OR_RETURN(const double decode, time_attention(request, workspace));
    request.n_tokens = std::min<std::int64_t>(options.n_ubatch, options.n_tokens);
    request.n_threads =
        threads_of(options.n_threads_batch > 0 ? options.n_threads_batch : options.n_threads);
    request.prefix = std::max<std::int64_t>(0, depth - request.n_tokens);
    VOLVELLE_ASSIGN_OR_RETURN(const double last, time_attention(request, workspace));
    request.prefix = 0;
    VOLVELLE_ASSIGN_OR_RETURN(const double first, time_attention(request, workspace));
    times.decode_seconds += readers * decode;
    times.last_chunk_seconds += readers * last;
    // A window is full after its first chunks, so all chunks cost what the last one costs.
    times.first_chunk_seconds += readers * (rule.tokens == 0 ? first : last);
  }
  return times;
}

/// Reads of the layers that an index serves, at one length.
struct IndexReads {
  double exact_seconds = 0;  // of one token
  double index_seconds = 0;
  double bytes_per_token = 0;
  std::uint64_t query_bytes = 0;  // of the last positions, which codes are made from
};
Result<IndexReads> time_indexed_layers(const Model& model, const PlanOptions& options,
                                       std::int64_t length, AttendWorkspace& workspace) {
  const ModelInfo& info = model.info();
  VOLVELLE_ASSIGN_OR_RETURN(IndexPlan index, index_plan(options.spec));
  VOLVELLE_ASSIGN_OR_RETURN(const KvTypes types, kv_types(options.spec));
  if (index.block_anchored) {
    VOLVELLE_ASSIGN_OR_RETURN(index.options.frame, make_block_frame(info.rope));
  }
  const MemoryIndex rule(index, {info.layers, types.k, types.v});
  IndexReads reads;
  std::vector<std::pair<LayerShape, IndexTiming>> timed;  // layers of one shape are timed once
  for (std::size_t i = 0; i < info.layers.size(); ++i) {
    if (!rule.serves(LayerIndex(static_cast<std::int64_t>(i)))) continue;
    if (options.cancel.cancelled()) return Error{ErrorCode::kCancelled, "plan: interrupted"};
    const LayerShape& shape = info.layers[i];
    auto found = std::find_if(timed.begin(), timed.end(),
                              [&](const auto& entry) { return entry.first == shape; });
    if (found == timed.end()) {
      const TimingRequest request{
          shape, info.n_heads, types.k, types.v, length, 1, threads_of(options.n_threads)};
      VOLVELLE_ASSIGN_OR_RETURN(const IndexTiming timing, time_index(request, index, workspace));
      timed.emplace_back(shape, timing);
      found = std::prev(timed.end());
    }
    reads.exact_seconds += info.layer_readers[i] * found->second.exact_seconds;
    reads.index_seconds += info.layer_readers[i] * found->second.index_seconds;
    reads.bytes_per_token += found->second.bytes_per_token;
    reads.query_bytes +=
        static_cast<std::uint64_t>(kQueryPositions / 2 * info.n_heads * shape.head_dim_k * 2);
  }
  return reads;
}

/// What an index costs and saves, for a spec with one: its bytes, the reads at the planned length,
/// and from where on it pays.
Status plan_index(const Model& model, const PlanOptions& options, AttendWorkspace& workspace,
                  Plan& plan, AttentionTimes& times) {
  if (!options.spec.topk) return {};
  VOLVELLE_ASSIGN_OR_RETURN(const IndexPlan index, index_plan(options.spec));
  plan.index_from = index.min_tokens;
  std::vector<std::int64_t> lengths;
  for (std::int64_t n = kMinIndexedTokens; n < options.n_tokens; n *= 2) lengths.push_back(n);
  lengths.push_back(std::max(options.n_tokens, kMinIndexedTokens));
  IndexReads reads;
  for (const std::int64_t length : lengths) {
    VOLVELLE_ASSIGN_OR_RETURN(reads, time_indexed_layers(model, options, length, workspace));
    const bool pays = reads.index_seconds < reads.exact_seconds;
    plan.crossover = !pays ? 0 : plan.crossover > 0 ? plan.crossover : length;
  }
  plan.code_bytes_per_token = reads.bytes_per_token;
  plan.index_bytes = reads.query_bytes;
  if (options.n_tokens < index.min_tokens) {
    plan.crossover = 0;
    return {};
  }
  plan.index_bytes +=
      static_cast<std::uint64_t>(reads.bytes_per_token * static_cast<double>(options.n_tokens));
  times.decode_seconds =
      std::max(0.0, times.decode_seconds - reads.exact_seconds) + reads.index_seconds;
  return {};
}

/// Rows of a group while the last ubatch runs: what it wrote is there, and what it lets go is not
/// gone yet; whole blocks are freed.
std::int64_t most_rows(const WindowRule& rule, const PlanOptions& options, std::int64_t n_tokens) {
  if (!rule.drops) return n_tokens;
  constexpr std::int64_t kBlock = RowGroup::kWindowBlockRows;
  const std::int64_t before = std::max<std::int64_t>(0, n_tokens - options.n_ubatch);
  const std::int64_t first = rule.keep_from(before) / kBlock * kBlock;
  const std::int64_t sinks = rule.sinks > 0 ? kBlock : 0;
  return std::min(n_tokens, n_tokens - first + sinks);
}

/// Rows, and codes of an index where one is used.
std::int64_t largest_context(const StoreLayout& layout, const PlanOptions& options,
                             const Plan& plan, std::uint64_t room, std::int64_t limit) {
  std::int64_t low = 0;
  std::int64_t high = limit;
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    const double coded = middle >= plan.index_from ? static_cast<double>(middle) : 0.0;
    const auto codes = static_cast<std::uint64_t>(plan.code_bytes_per_token * coded);
    if (planned_row_bytes(layout, options, middle) + codes <= room) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

Status check(const PlanOptions& options, const ModelInfo& info) {
  VOLVELLE_RETURN_IF_ERROR(require_supported(options.spec));
  if (options.n_tokens >= 1 && options.n_tokens <= info.context_length) return {};
  return Error{ErrorCode::kContextExceeded,
               "plan: expected 1 to " + std::to_string(info.context_length) +
                   " tokens (the model's context), got " + std::to_string(options.n_tokens)};
}

}  // namespace

std::uint64_t planned_row_bytes(const StoreLayout& layout, const PlanOptions& options,
                                std::int64_t n_tokens) {
  const LayerGrouping grouping = group_layers(layout, options.spec);
  std::uint64_t total = 0;
  for (std::size_t group = 0; group < grouping.rules.size(); ++group) {
    total += static_cast<std::uint64_t>(most_rows(grouping.rules[group], options, n_tokens)) *
             grouping.layout_of(layout, static_cast<int>(group)).bytes_per_token();
  }
  return total;
}

Result<Plan> make_plan(const Model& model, const PlanOptions& options) {
  const ModelInfo& info = model.info();
  VOLVELLE_RETURN_IF_ERROR(check(options, info));
  SessionOptions session_options;
  session_options.n_threads = options.n_threads;
  session_options.n_threads_batch = options.n_threads_batch;
  session_options.n_ubatch = options.n_ubatch;
  session_options.cancel = options.cancel;
  VOLVELLE_ASSIGN_OR_RETURN(session_options.kv, kv_types(options.spec));
  VOLVELLE_ASSIGN_OR_RETURN(Session session, Session::create(model, session_options));
  VOLVELLE_ASSIGN_OR_RETURN(const Calibration found, calibrate(session, options));
  const ResidentBytes& resident = found.resident;

  Plan plan;
  plan.weight_bytes = info.file_bytes;
  plan.row_bytes = planned_row_bytes(session.layout(), options, options.n_tokens);
  VOLVELLE_ASSIGN_OR_RETURN(
      AttendWorkspace workspace,
      make_workspace(info, std::max(threads_of(options.n_threads), options.n_threads_batch)));
  plan.scratch_bytes = workspace.bytes();
  const std::uint64_t libraries = resident.file - std::min(resident.file, plan.weight_bytes);
  const std::uint64_t counted = found.row_bytes + plan.scratch_bytes;
  plan.program_bytes = resident.anonymous - std::min(resident.anonymous, counted) + libraries;
  const std::uint64_t fixed = plan.weight_bytes + plan.scratch_bytes + plan.program_bytes;
  VOLVELLE_ASSIGN_OR_RETURN(AttentionTimes times, time_layers(model, options, workspace));
  VOLVELLE_RETURN_IF_ERROR(plan_index(model, options, workspace, plan, times));
  plan.total_bytes = fixed + plan.row_bytes + plan.index_bytes;
  plan.ram_bytes = options.ram_bytes;
  if (plan.ram_bytes == 0) {
    VOLVELLE_ASSIGN_OR_RETURN(const std::uint64_t available, available_bytes());
    plan.ram_bytes = available + resident.anonymous + resident.file;
  }
  plan.largest_context =
      largest_context(session.layout(), options, plan,
                      plan.ram_bytes - std::min(plan.ram_bytes, fixed), info.context_length);

  plan.attention_ms = 1e3 * times.decode_seconds;
  plan.decode_ms = 1e3 * found.decode_seconds + plan.attention_ms;
  const double chunks =
      static_cast<double>(options.n_tokens) / static_cast<double>(found.n_prefill);
  plan.fold_seconds =
      chunks * (found.prefill_seconds + (times.first_chunk_seconds + times.last_chunk_seconds) / 2);
  return plan;
}

}  // namespace volvelle
