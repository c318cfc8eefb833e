// 2,000 damaged memory files, seeded: flipped bits, cut ends, swapped and zeroed ranges, foreign
// bytes, edited headers; as they are, and with checks that were computed again.
//
// Without new checks every one of them is refused. With new checks a file may be accepted (nobody
// can see that a token or a row was exchanged on purpose), but then everything that a memory
// promises must hold: all rows that a query sees can be read, it goes on, and it is saved and comes
// back. Files: the first format, one and several groups of layers, windows, quantised rows, and
// more than one block of checks.
#include <gtest/gtest.h>

#include "law/memory_operations.hpp"
#include "unit/memory_file_support.hpp"

namespace volvelle {
namespace {

using testing::as_bytes;
using testing::Choice;
using testing::known_memory;
using testing::known_record;
using testing::mixed_layout;
using testing::read_file;
using testing::TempFolder;
using testing::write_file;

StoreLayout windowed_layout(ElementType k, ElementType v) {
  return {{{1, 3, 2, 0}, {2, 2, 5, 8}, {}, {1, 33, 3, 100}}, k, v};
}

/// Computes the checks again, if the file can still be taken apart.
std::string with_new_checks(std::string file) {
  const Result<SafetensorsHeader> header = parse_safetensors(as_bytes(file));
  if (!header.ok() || header->tensors.empty()) return file;
  const TensorEntry& sums = header->tensors.back();
  if (sums.end - sums.begin != kCheckBytes * (1 + n_check_blocks(sums.begin))) return file;
  auto* const bytes = reinterpret_cast<std::byte*>(file.data());
  const std::size_t data = header->data_offset;
  compute_checks({bytes, data}, {bytes + data, sums.begin},
                 {bytes + data + sums.begin, sums.end - sums.begin}, {});
  return file;
}

class Mutator {
 public:
  Mutator(const std::string& file, Choice& choice) : file_(file), choice_(choice) {
    json_ = static_cast<std::size_t>(testing::le_at<std::uint64_t>(file, 0));
  }

  std::string mutated() {
    static constexpr void (Mutator::*kKinds[])() = {
        &Mutator::flip_bits,         &Mutator::cut,
        &Mutator::swap_ranges,       &Mutator::zero_range,
        &Mutator::foreign_bytes,     &Mutator::edit_json,
        &Mutator::edit_json,         &Mutator::edit_number,
        &Mutator::edit_number,       &Mutator::edit_length,
        &Mutator::edit_small_tensors};
    (this->*kKinds[choice_.below(std::size(kKinds))])();
    return std::move(file_);
  }

 private:
  char& at(std::size_t i) { return file_[i]; }
  std::size_t somewhere() {  // half of the time where everything is decided
    return choice_.one_in(2) ? choice_.below(std::min(file_.size(), json_ + 3000))
                             : choice_.below(file_.size());
  }
  std::size_t a_length() { return 1 + choice_.below(std::min<std::size_t>(file_.size(), 5000)); }

  void flip_bits() {
    for (std::size_t n = 1 + choice_.below(3); n > 0; --n) {
      char& byte = at(somewhere());
      byte = static_cast<char>(byte ^ (1 << choice_.below(8)));
    }
  }
  void cut() {
    if (choice_.one_in(4)) {
      file_ += std::string(a_length(), '\0');
    } else {
      file_.resize(choice_.one_in(2) ? somewhere() : file_.size() - a_length() % file_.size());
    }
  }
  void swap_ranges() {
    const std::size_t n = std::min(a_length(), file_.size() / 2);
    const std::size_t a = choice_.below(file_.size() / 2 - n + 1);
    const std::size_t b = file_.size() / 2 + choice_.below(file_.size() / 2 - n + 1);
    std::swap_ranges(file_.begin() + static_cast<std::ptrdiff_t>(a),
                     file_.begin() + static_cast<std::ptrdiff_t>(a + n),
                     file_.begin() + static_cast<std::ptrdiff_t>(b));
  }
  void zero_range() {
    const std::size_t begin = somewhere();
    const std::size_t n = std::min(a_length(), file_.size() - begin);
    file_.replace(begin, n, n, '\0');
  }
  void foreign_bytes() {
    const std::size_t begin = somewhere();
    const std::size_t n = std::min(a_length(), file_.size() - begin);
    for (std::size_t i = 0; i < n; ++i) at(begin + i) = static_cast<char>(choice_.below(256));
  }
  void edit_json() {
    static constexpr char kLikely[] = "0123456789,:[]{}\"\\-+.eE tfnu \n";
    for (std::size_t n = 1 + choice_.below(2); n > 0; --n)
      at(8 + choice_.below(json_)) = kLikely[choice_.below(sizeof(kLikely) - 1)];
  }
  /// A digit of the header becomes another one.
  void edit_number() {
    for (int tries = 0; tries < 200; ++tries) {
      char& c = at(8 + choice_.below(json_));
      if (c < '0' || c > '9') continue;
      c = static_cast<char>('0' + (c - '0' + 1 + static_cast<int>(choice_.below(9))) % 10);
      return;
    }
  }
  void edit_length() {
    const std::uint64_t lengths[] = {0,
                                     1,
                                     json_ - 1,
                                     json_ + 1,
                                     json_ + 64,
                                     file_.size(),
                                     file_.size() - 8,
                                     std::uint64_t{1} << 62,
                                     ~std::uint64_t{0}};
    file_.replace(0, 8, testing::le(lengths[choice_.below(std::size(lengths))]));
  }
  /// Numbers of tokens, ranges and positions.
  void edit_small_tensors() {
    const std::int64_t values[] = {-1,
                                   0,
                                   1,
                                   7,
                                   1000,
                                   std::int64_t{1} << 40,
                                   std::numeric_limits<std::int64_t>::max(),
                                   std::numeric_limits<std::int64_t>::min()};
    const std::size_t begin = 8 + json_ + 8 * choice_.below(std::size_t{600});
    if (begin + 8 > file_.size()) return;
    file_.replace(begin, 8, testing::le(values[choice_.below(std::size(values))]));
  }

  std::string file_;
  Choice& choice_;
  std::size_t json_ = 0;
};

class Mutations : public ::testing::Test {
 protected:
  Mutations() : folder_(testing::fast_folder()) {
    files_.push_back(read_file(std::filesystem::path(VOLVELLE_GOLDEN_DIR) / "memory_v1.vmem"));
    add(mixed_layout(), "full", 60);
    add(mixed_layout(), "sink(4)+window(20,block=4)", 200);
    add(windowed_layout(ElementType::kF16, ElementType::kF32), "full", 400);
    add(windowed_layout(ElementType::kQ8_0, ElementType::kQ4_0), "sink(2)+window(50)", 400);
    add(mixed_layout(), "full", 2500);  // several blocks of checks
  }

  void add(const StoreLayout& layout, const std::string& terms, std::int64_t n) {
    const std::string spec = terms + "+kv(k=" + std::string(to_string(layout.k_type)) +
                             ",v=" + std::string(to_string(layout.v_type)) + ")";
    MemoryRecord record = known_record(n, spec);
    record.sources = {{"a.txt", {0, 90}}, {"b.txt", {92, 150}}};
    ASSERT_TRUE(save_memory(path("good"), record, known_memory(record, layout)).ok());
    files_.push_back(read_file(path("good")));
  }
  std::filesystem::path path(const std::string& name) const { return folder_ / name; }
  const std::string& some_file(Choice& choice) const {
    if (choice.one_in(40)) return files_.back();  // the big one costs most of the time
    return files_[choice.below(files_.size() - 1)];
  }

  /// The memory, or nothing if the file was refused with one line.
  std::optional<ContextMemory> opened(const std::string& bytes) {
    write_file(path("m"), bytes);
    Result<MemoryFile> file = MemoryFile::open(path("m"));
    if (!file.ok()) return refused(file.error());
    record_ = file->record();
    const Status verified = file->verify_rows();
    if (!verified.ok()) return refused(verified.error());
    Result<ContextMemory> memory = file->restore();
    if (!memory.ok()) return refused(memory.error());
    return std::move(memory).value();
  }
  static std::nullopt_t refused(const Error& error) {
    testing::expect_one_line(error.message);
    EXPECT_TRUE(error.code == ErrorCode::kCorrupt || error.code == ErrorCode::kUnsupported ||
                error.code == ErrorCode::kMismatch || error.code == ErrorCode::kInvalidArgument)
        << error.message;
    return std::nullopt;
  }

  /// What an accepted memory owes.
  void expect_sound(ContextMemory& memory) {
    ASSERT_TRUE(std::equal(memory.tokens().begin(), memory.tokens().end(), record_.tokens.begin(),
                           record_.tokens.end()));
    read_all_rows(memory);
    testing::feed_known(memory, 3, 2);
    read_all_rows(memory);
    record_.tokens.assign(memory.tokens().begin(), memory.tokens().end());
    record_.ranges.resize(record_.tokens.size());
    const auto saved = save_memory(path("again"), record_, memory);
    ASSERT_TRUE(saved.ok()) << saved.error().message;
    auto again = MemoryFile::open(path("again"));
    ASSERT_TRUE(again.ok() && again->verify_rows().ok());
    EXPECT_TRUE(again->restore().ok());
  }
  static void read_all_rows(ContextMemory& memory) {
    for (int layer = 0; layer < static_cast<int>(memory.layout().layers.size()); ++layer) {
      if (memory.layout().layers[static_cast<std::size_t>(layer)].n_kv_heads == 0) continue;
      const KvStore& store = memory.group_of(LayerIndex(layer)).store();
      const testing::PositionLists seen = testing::seen_by_next(memory, 1, layer);
      for (const std::int64_t p : seen[0]) {
        if (p == memory.length()) continue;  // pending
        const auto positions = store.positions();
        const auto row = std::lower_bound(positions.begin(), positions.end(), Position(p));
        for (const auto side : {testing::Side::kKey, testing::Side::kValue})
          ASSERT_TRUE(testing::read_row(store, layer, side, row - positions.begin()).has_value());
      }
    }
  }

  TempFolder folder_;
  std::vector<std::string> files_;
  MemoryRecord record_;
};

TEST_F(Mutations, AThousandDamagedFilesAreRefused) {
  for (const std::string& file : files_) {
    auto memory = opened(file);
    ASSERT_TRUE(memory.has_value());
    expect_sound(*memory);
  }
  Choice choice(1);
  for (int i = 0; i < 1000; ++i) {
    const std::string& good = some_file(choice);
    const std::string bad = Mutator(good, choice).mutated();
    if (bad == good) continue;  // a zero became a zero
    ASSERT_FALSE(opened(bad).has_value()) << "mutation " << i;
  }
}

TEST_F(Mutations, AThousandForgedFilesAreRefusedOrSound) {
  Choice choice(2);
  int n_accepted = 0;
  for (int i = 0; i < 1000; ++i) {
    SCOPED_TRACE("mutation " + std::to_string(i));
    auto memory = opened(with_new_checks(Mutator(some_file(choice), choice).mutated()));
    if (!memory) continue;
    ++n_accepted;
    expect_sound(*memory);
    if (HasFatalFailure()) return;
  }
  // Exchanged tokens, text and rows: so the second half of the test does happen.
  EXPECT_GT(n_accepted, 50);
  EXPECT_LT(n_accepted, 600);
}

}  // namespace
}  // namespace volvelle
