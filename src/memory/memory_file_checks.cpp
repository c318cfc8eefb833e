// Hashing the blocks of a memory file, by several threads when there is much to read: on a file
// that is not in the page cache the time goes into waiting for pages, and several readers keep the
// disk busy. Threads take blocks from a shared counter; the calling thread works too and is the one
// that reports progress. Cost: one pass over the bytes.
#include "memory/memory_file_checks.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

namespace volvelle {
namespace {

constexpr std::uint64_t kBlocksPerThread = 64;  // less work than this is not worth a thread
constexpr std::uint64_t kMaxThreads = 8;
constexpr std::chrono::milliseconds kReportEvery{250};

std::span<const std::byte> block_of(std::span<const std::byte> data, std::uint64_t i) {
  const std::uint64_t begin = i * kCheckBlockBytes;
  return data.subspan(begin, std::min<std::uint64_t>(kCheckBlockBytes, data.size() - begin));
}

class Reporter {
 public:
  Reporter(const ProgressSink& sink, std::uint64_t total) : sink_(sink), total_(total) {}
  void report(std::uint64_t done) {  // bytes
    const auto now = std::chrono::steady_clock::now();
    if (!sink_ || (done < total_ && now - last_ < kReportEvery)) return;
    last_ = now;
    sink_({"verify", static_cast<std::int64_t>(done), static_cast<std::int64_t>(total_), "bytes"});
  }

 private:
  const ProgressSink& sink_;
  std::uint64_t total_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

struct BlockRange {
  std::uint64_t begin, end;
};

/// Calls work(i, block) once for every block of the range; blocks may run at the same time.
template <class Work>
void for_each_block(std::span<const std::byte> data, BlockRange range, const ProgressSink& progress,
                    const Work& work) {
  const auto [begin, end] = range;
  if (begin >= end) return;
  const std::uint64_t total =
      std::min<std::uint64_t>(end * kCheckBlockBytes, data.size()) - begin * kCheckBlockBytes;
  std::atomic<std::uint64_t> next{begin};
  std::atomic<std::uint64_t> done{0};
  const auto drain = [&, end = end](auto&& after_each) {
    for (std::uint64_t i = next.fetch_add(1); i < end; i = next.fetch_add(1)) {
      const std::span<const std::byte> block = block_of(data, i);
      work(i, block);
      after_each(done.fetch_add(block.size()) + block.size());
    }
  };
  const std::uint64_t wanted =
      std::min({(end - begin) / kBlocksPerThread, kMaxThreads,
                std::uint64_t{std::max(1u, std::thread::hardware_concurrency())}});
  std::vector<std::jthread> helpers;
  try {
    for (std::uint64_t i = 1; i < wanted; ++i)
      helpers.emplace_back([&] { drain([](std::uint64_t) {}); });
  } catch (const std::system_error&) {
    // No more threads to be had: those that started, and this one, do all the work.
  }
  Reporter reporter(progress, total);
  drain([&](std::uint64_t n) { reporter.report(n); });
  helpers.clear();  // joins
  reporter.report(total);
}

}  // namespace

bool CheckedFile::header_matches() const noexcept {
  const Checksum sum = checksum(header);
  return std::memcmp(sum.data(), sums.data(), sum.size()) == 0;
}

std::optional<std::uint64_t> CheckedFile::first_damaged(std::uint64_t begin, std::uint64_t end,
                                                        const ProgressSink& progress) const {
  std::atomic<std::uint64_t> damaged{end};
  for_each_block(data, {begin, end}, progress, [&](std::uint64_t i, auto block) {
    const Checksum sum = checksum(block);
    if (std::memcmp(sum.data(), sums.data() + (i + 1) * kCheckBytes, sum.size()) == 0) return;
    std::uint64_t known = damaged.load();
    while (i < known && !damaged.compare_exchange_weak(known, i)) {
    }
  });
  if (damaged == end) return std::nullopt;
  return damaged.load();
}

void compute_checks(std::span<const std::byte> header, std::span<const std::byte> data,
                    std::span<std::byte> sums, const ProgressSink& progress) {
  const Checksum of_header = checksum(header);
  std::memcpy(sums.data(), of_header.data(), of_header.size());
  for_each_block(data, {0, n_check_blocks(data.size())}, progress,
                 [&](std::uint64_t i, auto block) {
                   const Checksum sum = checksum(block);
                   std::memcpy(sums.data() + (i + 1) * kCheckBytes, sum.data(), sum.size());
                 });
}

}  // namespace volvelle
