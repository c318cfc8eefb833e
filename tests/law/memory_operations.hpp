// Random sequences of what people do with memories, several of them at a time, beside a simple
// model of what each must contain: append, cancel in the middle, branch, truncate, save, load, fold
// into a file, ask, step several in one batch, forget.
//
// What a backend supplies is how tokens become rows, and how to look at them:
//   layout(), spec(), new_tokens(choice, n), longest_append()
//   advance(work, choice, interrupted): runs tokens through memories; if interrupted it fails, and
//       each memory has a prefix of its tokens
//   check(memory, model, stride): contents of every stride-th row that must be there
//   ask(branch, model, choice): steps tokens into a branch and compares what they see
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include "law/memory_model.hpp"
#include "unit/file_support.hpp"
#include "unit/random_sequence.hpp"
#include "volvelle/memory/memory_file.hpp"

namespace volvelle::testing {

/// Tokens that go to one memory.
struct Work {
  ContextMemory* memory = nullptr;
  std::vector<TokenId> tokens;
};

inline MemoryRecord record_of(const ContextMemory& memory) {
  MemoryRecord record;
  record.spec = to_string(memory.spec());
  record.tokens.assign(memory.tokens().begin(), memory.tokens().end());
  record.ranges.resize(record.tokens.size());
  return record;
}

template <class Backend>
class MemoryOperations {
 public:
  MemoryOperations(Backend& backend, std::uint64_t seed, const std::filesystem::path& base)
      : backend_(backend), choice_(seed), live_(choice_, 4), folder_(base) {
    live_.add(empty_memory(), empty_model());
  }

  void step() {
    static constexpr void (MemoryOperations::*kOperations[])() = {
        &MemoryOperations::append, &MemoryOperations::append,
        &MemoryOperations::append, &MemoryOperations::cancel,
        &MemoryOperations::branch, &MemoryOperations::truncate,
        &MemoryOperations::save,   &MemoryOperations::load,
        &MemoryOperations::fold,   &MemoryOperations::ask,
        &MemoryOperations::ask,    &MemoryOperations::batch,
        &MemoryOperations::batch,  &MemoryOperations::start_or_forget};
    (this->*kOperations[choice_.below(std::size(kOperations))])();
  }

  void check() {
    for (const auto& pair : live_.all()) check(pair, 29);
  }
  /// Everything is looked at once more, then it all goes.
  void finish() {
    for (const auto& pair : live_.all()) check(pair, 1);
    for (const auto& [path, model] : saved_) {
      Result<ContextMemory> memory = opened(path);
      ASSERT_TRUE(memory.ok()) << memory.error().message;
      check({std::move(memory).value(), model}, 1);
    }
    EXPECT_EQ(folder_.n_entries(), saved_.size());  // whatever was cancelled left nothing behind
    live_.clear();
  }
  int n_refused() const { return n_refused_; }

 private:
  using Objects = LiveObjects<ContextMemory, MemoryModel>;
  using Pair = typename Objects::Pair;

  ContextMemory empty_memory() {
    return ContextMemory::create(backend_.layout(), backend_.spec()).value();
  }
  MemoryModel empty_model() const { return MemoryModel(backend_.layout(), backend_.spec()); }

  std::vector<TokenId> new_tokens() {
    const std::int64_t many = choice_.below(backend_.longest_append());
    const std::int64_t few = choice_.below(std::int64_t{5});
    return backend_.new_tokens(choice_, 1 + (choice_.one_in(4) ? many : few));
  }

  void append() {
    Pair& pair = live_.pick();
    const Work work{&pair.object, new_tokens()};
    const Status status = backend_.advance({&work, 1}, choice_, false);
    ASSERT_TRUE(status.ok()) << status.error().message;
    pair.model.append(work.tokens);
  }

  /// Whatever was read before the interruption stays.
  void cancel() {
    Pair& pair = live_.pick();
    const Work work{&pair.object, new_tokens()};
    ASSERT_FALSE(backend_.advance({&work, 1}, choice_, true).ok());
    take_prefix(pair, work.tokens);
  }

  static void take_prefix(Pair& pair, std::span<const TokenId> tokens) {
    const std::int64_t n = pair.object.length() - pair.model.length();
    ASSERT_GE(n, 0);
    ASSERT_LE(n, std::ssize(tokens));
    pair.model.append(tokens.first(static_cast<std::size_t>(n)));
  }

  /// Two or more memories in one batch, now and then interrupted.
  void batch() {
    std::vector<Work> work;
    std::vector<Pair*> pairs;
    for (Pair& pair : live_.all()) {
      if (live_.all().size() > 2 && choice_.one_in(3)) continue;
      pairs.push_back(&pair);
      work.push_back({&pair.object, new_tokens()});
    }
    if (work.empty()) return;
    const bool interrupted = choice_.one_in(4);
    ASSERT_EQ(backend_.advance(work, choice_, interrupted).ok(), !interrupted);
    for (std::size_t i = 0; i < work.size(); ++i) {
      take_prefix(*pairs[i], work[i].tokens);
      if (!interrupted) {
        ASSERT_EQ(pairs[i]->object.length(), pairs[i]->model.length());
      }
    }
  }

  void branch() { live_.branch(); }

  void truncate() {
    Pair& pair = live_.pick();
    const std::int64_t n = pair.model.length();
    // A few tokens, any number, or nearly all (into the sinks).
    std::int64_t back = choice_.below(std::min<std::int64_t>(n, 50) + 1);
    if (choice_.one_in(3)) back = choice_.below(n + 1);
    if (choice_.one_in(5)) back = n - choice_.below(std::min<std::int64_t>(n, 8) + 1);
    const bool possible = pair.model.can_truncate(n - back);
    ASSERT_EQ(pair.object.truncate(n - back).ok(), possible) << n << " to " << n - back;
    if (possible) pair.model.truncate(n - back);
    n_refused_ += possible ? 0 : 1;
  }

  std::filesystem::path some_path() {
    return folder_ / (std::to_string(choice_.below(3)) + ".vmem");
  }

  void save() {
    const Pair& pair = live_.pick();
    check_positions(pair);
    const std::filesystem::path path = some_path();
    const auto written = save_memory(path, record_of(pair.object), pair.object);
    ASSERT_EQ(written.ok(), pair.model.can_be_saved());
    if (written.ok()) saved_.insert_or_assign(path, pair.model);
  }

  /// A file keeps the rows that are certain, no others.
  static void check_positions(const Pair& pair) {
    const RowPositions positions = pair.object.positions_to_keep();
    for (std::size_t layer = 0; layer < pair.model.n_layers(); ++layer) {
      if (!pair.model.stores(layer)) continue;
      const int group = pair.object.grouping().group_of_layer[layer];
      ASSERT_EQ(positions[static_cast<std::size_t>(group)], pair.model.kept(layer));
    }
  }

  static Result<ContextMemory> opened(const std::filesystem::path& path) {
    Result<MemoryFile> file = MemoryFile::open(path);
    if (!file.ok()) return file.error();
    const Status verified = file->verify_rows();
    if (!verified.ok()) return verified.error();
    return file->restore();
  }

  /// The file may be replaced while its memory lives.
  void load() {
    if (saved_.empty()) return;
    auto saved = saved_.begin();
    std::advance(saved, choice_.below(saved_.size()));
    Result<ContextMemory> memory = opened(saved->first);
    ASSERT_TRUE(memory.ok()) << memory.error().message;
    live_.add(std::move(memory).value(), saved->second);
  }

  /// Reads tokens straight into a file, where layers keep everything, and goes on with the memory.
  void fold() {
    Pair pair{empty_memory(), empty_model()};
    const Work work{&pair.object,
                    backend_.new_tokens(choice_, 1 + choice_.below(backend_.longest_append()))};
    MemoryRecord record = record_of(pair.object);
    record.tokens = work.tokens;
    record.ranges.resize(work.tokens.size());
    const LayerGrouping& grouping = pair.object.grouping();
    const std::filesystem::path path = some_path();
    auto writer = MemoryFileWriter::create(path, record, pair.object.layout(),
                                           positions_after(grouping, std::ssize(work.tokens)));
    ASSERT_TRUE(writer.ok()) << writer.error().message;
    for (int group = 0; group < std::ssize(grouping.rules); ++group) {
      if (grouping.rules[static_cast<std::size_t>(group)].drops) continue;
      ASSERT_TRUE(pair.object.write_into(group, writer->rows(group)).ok());
    }
    const bool interrupted = choice_.one_in(3);
    ASSERT_EQ(backend_.advance({&work, 1}, choice_, interrupted).ok(), !interrupted);
    if (interrupted) return;  // memory and file go
    pair.model.append(work.tokens);
    for (int group = 0; group < std::ssize(grouping.rules); ++group) {
      if (!grouping.rules[static_cast<std::size_t>(group)].drops) continue;
      ASSERT_TRUE(writer->copy_rows(pair.object, group).ok());
    }
    ASSERT_TRUE(writer->finish().ok());
    saved_.insert_or_assign(path, pair.model);
    live_.add(std::move(pair.object), std::move(pair.model));
  }

  void ask() {
    Pair& pair = live_.pick();
    ContextMemory branch = pair.object.clone();
    backend_.ask(branch, pair.model, choice_);
  }

  void start_or_forget() {
    if (choice_.one_in(2)) return live_.drop();
    live_.add(empty_memory(), empty_model());
  }

  void check(const Pair& pair, std::size_t stride) {
    const ContextMemory& memory = pair.object;
    ASSERT_EQ(memory.length(), pair.model.length());
    ASSERT_TRUE(std::equal(memory.tokens().begin(), memory.tokens().end(),
                           pair.model.tokens().begin(), pair.model.tokens().end()));
    for (const RowGroup& group : memory.groups()) ASSERT_EQ(group.length(), memory.length());
    backend_.check(memory, pair.model, stride);
  }

  Backend& backend_;
  Choice choice_;
  Objects live_;
  TempFolder folder_;
  std::map<std::filesystem::path, MemoryModel> saved_;
  int n_refused_ = 0;
};

/// Where files cost no disk, if there is such a place.
inline std::filesystem::path fast_folder() {
  const std::filesystem::path memory = "/dev/shm";
  return std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path();
}

}  // namespace volvelle::testing
