// Nothing is ever called better than its weakest read: one estimate makes a run estimated.
#include "certificate.hpp"

#include <fmt/format.h>

#include "volvelle/memory/memory_index.hpp"

namespace volvelle::cli {

namespace {

constexpr const char* kScope =
    "max_error bounds the total variation of the attention weights of each read, given this run's "
    "queries and keys; it is not an error of the answer";

// Without a certificate nothing is promised.
constexpr const char* kUnproved =
    "max_error, if given, only chooses how much is read: this run asked for no certificate, so "
    "reads in full are exact and the others have no bound; it is not an error of the answer";

double share(std::int64_t part, std::int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 1.0;
}

const char* class_of(const MemorySpec& spec, const ReadStatistics& reads) {
  if (!spec.keeps_everything()) return "estimated";  // rows were dropped
  if (!spec.topk || reads.dense == reads.reads) return "exact";
  return reads.certified == reads.reads ? "certified" : "estimated";
}

/// Probability that some bound of a run with dithered codes does not hold, at most.
double run_delta(const ReadStatistics& reads) {
  return TopkPolicy{}.delta * static_cast<double>(reads.certified - reads.dense);
}

/// What a dithered certificate says, and what not.
Json dither_json(const ReadStatistics& reads) {
  return {{"delta_per_read", TopkPolicy{}.delta},
          {"delta", run_delta(reads)},
          {"statement",
           "with probability at least 1 - delta over the random dither of the codes, either every "
           "bound holds or the text has left the one that exact attention would have given; for "
           "queries that do not depend on the dither by other ways than the tokens"}};
}

}  // namespace

double bytes_ratio(const ReadStatistics& reads) {
  return share(reads.bytes_read, reads.bytes_dense);
}

Json certificate_json(const MemorySpec& spec, const ReadStatistics& reads) {
  Json json = {{"class", class_of(spec, reads)}, {"scope", kScope}};
  if (!spec.topk) return json;
  if (spec.topk->cert == "none") json["scope"] = kUnproved;
  const bool bounded = reads.certified > reads.dense;
  json["max_error"] = spec.topk->max_error ? Json(*spec.topk->max_error) : Json();
  json["reads"] = reads.reads;
  json["certified_share"] = share(reads.certified, reads.reads);
  json["worst_bound"] = bounded ? Json(reads.worst_bound) : Json();
  json["fallbacks"] = reads.dense;
  json["rows_read_share"] = share(reads.rows_read, reads.rows_seen);
  json["bytes_ratio"] = bytes_ratio(reads);
  if (spec.topk->cert == "dither") json["probability"] = dither_json(reads);
  return json;
}

std::string certificate_text(const MemorySpec& spec, const ReadStatistics& reads) {
  if (!spec.topk) return {};
  std::string line = fmt::format(
      "reads: {}; {:.1f} % of the rows exactly, {:.1f} % of the bytes", class_of(spec, reads),
      100.0 * share(reads.rows_read, reads.rows_seen), 100.0 * bytes_ratio(reads));
  if (reads.certified > reads.dense)
    line += fmt::format(
        ", worst bound of the weights' total variation {:.4f}{}", reads.worst_bound,
        spec.topk->cert == "dither"
            ? fmt::format(" (with probability 1 - {:.1e} or more over the random dither of the "
                          "codes either "
                          "all bounds hold or the text has left the one of exact attention)",
                          run_delta(reads))
            : "");
  if (reads.reads > 0 && reads.unindexed == reads.reads)
    return line + fmt::format(", all in full; an index is used from {} tokens on",
                              spec.topk->min.value_or(kMinIndexedTokens));
  if (reads.dense > 0)
    line += fmt::format(", {:.1f} % read in full", 100.0 * share(reads.dense, reads.reads));
  return line;
}

}  // namespace volvelle::cli
