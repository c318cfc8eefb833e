// Attention that reads few rows: scores of all rows from codes, the best rows exactly, the rest
// from codes too.
//
// For one query token and KV head:
//   exact   the sinks, the rows behind the coded ones (the recent window), and the k coded rows
//   with
//           the largest sum over the group's heads of the coded softmax
//   coded   every other row with its coded weight and coded value, merged before normalisation
//           (tail `coded`), or left out and the rest renormalised (tail `none`)
// With an error limit k is doubled from its floor until a bound (or an estimate) of the total
// variation between the weights used and the true ones stays below the limit for every head of the
// group; if no k does, the KV head is read exactly in full. Results have the same bits for any
// number of threads.
//
// Cost per KV head and n rows: n * (bits of a key code + of a value code) / 8 bytes, plus k exact
// rows. Thread rule: as attend().
#pragma once

#include <cstdint>
#include <memory>

#include "volvelle/attention/attend.hpp"
#include "volvelle/index/code_index.hpp"

namespace volvelle {

enum class CertificateKind {
  kNone,      // an estimate from the steps of the code
  kExact,     // a bound from the stored norm of each key's coding error; needs LayerCode::norms
  kDithered,  // a bound that holds with probability 1 - delta over the codes' random dither, for
              // queries that do not depend on it; needs LayerCode::dither
};

struct TopkPolicy {
  std::int64_t k = 128;    // rows read exactly for each KV head; with a limit: the floor
  double max_error = 0.0;  // limit of the total variation; 0: k is fixed
  CertificateKind certificate = CertificateKind::kNone;
  double delta = 1e-9;  // of a dithered certificate, for each read of a query head
  bool coded_tail = true;
  std::int64_t sinks = 4;
  std::int64_t window = 64;  // at least so many last rows are read exactly
};

/// What reads have cost and what is known about their error; adds up over reads.
struct ReadStatistics {
  std::int64_t reads = 0;      // of one query head and token
  std::int64_t certified = 0;  // with a proved bound within the limit, exact ones included
  std::int64_t dense = 0;      // read exactly in full because no k was enough, or without an index
  std::int64_t unindexed = 0;  // of them, where the index was not used (short memories)
  double worst_bound = 0.0;    // of the certified ones
  double sum_bound = 0.0;      // bounds or estimates, where one was computed
  std::int64_t rows_seen = 0;  // visible rows, per KV head
  std::int64_t rows_read = 0;  // of them read exactly
  std::int64_t bytes_read = 0;
  std::int64_t bytes_dense = 0;  // what reading all rows exactly would have read
  // of the reads that were checked against exact attention (SessionOptions::audit_reads)
  std::int64_t audited = 0;
  std::int64_t violations = 0;  // whose weights were farther from exact than their bound
  double sum_variation = 0.0;   // total variation of their weights
  double worst_variation = 0.0;
  double sum_output_error = 0.0;  // |output - exact| / |exact|
  void add(const ReadStatistics& other) noexcept;
};

class TopkWorkspace {
 public:
  static Result<TopkWorkspace> create(int max_threads, int max_heads, int max_head_dim_k,
                                      int max_head_dim_v);
  TopkWorkspace(TopkWorkspace&&) noexcept;
  TopkWorkspace& operator=(TopkWorkspace&&) noexcept;
  ~TopkWorkspace();

  /// Makes room for reads over so many tiles. Must be called before, outside the pool of threads.
  Status reserve(std::int64_t n_tiles);
  bool take_not_finite() noexcept;
  /// Statistics since the last call; not while a read runs.
  ReadStatistics take_statistics() noexcept;
  std::size_t bytes() const noexcept;

  struct Impl;
  Impl& impl() noexcept { return *impl_; }

 private:
  explicit TopkWorkspace(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

/// Whether a task can be read through an index: it has one, no soft cap, plain visibility (no
/// window), and some coded rows are visible.
bool can_read_topk(const AttendTask& task, const CodeIndex& index,
                   const TopkPolicy& policy) noexcept;

/// Thread `ith` of `nth` does its share; all threads must call, and meet inside. Otherwise as
/// attend().
void topk_attend(const AttendTask& task, const CodeIndex& index, const TopkPolicy& policy,
                 TopkWorkspace& workspace, int ith, int nth) noexcept;
/// The same on `n_threads` own threads, for tests and benches.
void topk_attend(const AttendTask& task, const CodeIndex& index, const TopkPolicy& policy,
                 TopkWorkspace& workspace, int n_threads);

}  // namespace volvelle
