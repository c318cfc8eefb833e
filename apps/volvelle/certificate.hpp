// What is known about the error of a run's reads, for reports.
#pragma once

#include <string>

#include "output.hpp"
#include "volvelle/index/topk_read.hpp"
#include "volvelle/memory/memory_spec.hpp"

namespace volvelle::cli {

/// The weakest class of the reads of a run: exact, certified or estimated; what was bounded, and by
/// how much.
Json certificate_json(const MemorySpec& spec, const ReadStatistics& reads);
/// Bytes read over those that reading all rows exactly would have read; 1 without reads.
double bytes_ratio(const ReadStatistics& reads);
/// One line, or nothing for reads that are exact anyway.
std::string certificate_text(const MemorySpec& spec, const ReadStatistics& reads);

}  // namespace volvelle::cli
