// Cost laws of the fold: what reading must cost, counted, against the closed forms.
//
//   multiply-adds of a step of n tokens behind P, one layer:  H (Dk + Dv) (n P + n (n + 1) / 2)
//   bytes of keys and values:                                 2 L G D bytes T
//   scratch of attention:                                     the same for any T, and none is
//   allocated
//
// Attention is done here by plain loops that count, and their output must be that of attend(): so
// what is counted is the work that gives the result.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>
#include <numeric>

#include "law/attend_case.hpp"
#include "volvelle/memory/context_memory.hpp"

namespace {
std::atomic<std::int64_t> n_allocations{0};
}  // namespace

// Every allocation of this program is counted; not under a sanitizer, which has operators of its
// own. Not inlined, or the compiler sees free() meet new.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++n_allocations;
  if (void* const p = std::malloc(size == 0 ? 1 : size)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  ++n_allocations;
  const auto to = static_cast<std::size_t>(alignment);
  if (void* const p = std::aligned_alloc(to, (size + to - 1) / to * to)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t, std::align_val_t) noexcept {
  std::free(p);
}
#endif

namespace volvelle::law {
namespace {

constexpr int kHeads = 4, kKvHeads = 2, kDimK = 24, kDimV = 16;

ContextMemory make_memory(const std::string& spec) {
  StoreLayout layout;
  layout.layers = {{kKvHeads, kDimK, kDimV}};
  layout.k_type = layout.v_type = ElementType::kF32;
  return ContextMemory::create(layout, parse_memory_spec(spec + "+kv(k=f32,v=f32)").value())
      .value();
}

AttentionShape shape() {
  return shape_of(kKvHeads, kHeads / kKvHeads, kDimK, kDimV, ElementType::kF32, ElementType::kF32);
}

/// Row `row` of KV head `head`, from the segments.
const float* row_of(const AttendTask& task, bool key, int head, std::int64_t row) {
  for (const KeyValueSegment& s : task.segments) {
    if (row < s.first_row || row >= s.first_row + s.n_rows) continue;
    const auto at = static_cast<std::size_t>(row - s.first_row);
    const auto h = static_cast<std::size_t>(head);
    const std::byte* const bytes = key ? s.k + h * s.k_head_stride + at * kDimK * sizeof(float)
                                       : s.v + h * s.v_head_stride + at * kDimV * sizeof(float);
    return reinterpret_cast<const float*>(bytes);
  }
  throw std::logic_error("a visible row is in no segment");
}

/// Attention of one query by plain loops; returns the multiply-adds of scores and of the mix.
std::int64_t counted_attention(const AttendTask& task, std::int64_t token, int head, double* out) {
  const VisibleRows& seen = task.visible[static_cast<std::size_t>(token)];
  const int kv_head = head / task.shape.group();
  const float* const q = task.q + token * task.q_token_stride + head * task.q_head_stride;
  std::int64_t count = 0;
  double sum = 0;
  for (std::int64_t row = 0; row < seen.end; ++row) {
    if (row >= seen.sink_end && row < seen.begin) continue;
    const float* const k = row_of(task, true, kv_head, row);
    double score = 0;
    for (int i = 0; i < kDimK; ++i, ++count) score += static_cast<double>(q[i]) * k[i];
    const double weight = std::exp(score * task.shape.scale);
    sum += weight;
    const float* const v = row_of(task, false, kv_head, row);
    for (int i = 0; i < kDimV; ++i, ++count) out[i] += weight * v[i];
  }
  for (int i = 0; i < kDimV; ++i) out[i] /= sum;
  return count;
}

class CountedFold {
 public:
  explicit CountedFold(const std::string& spec)
      : memory_(make_memory(spec)), workspace_(workspace_for(shape())) {}

  /// Multiply-adds of one chunk; its outputs are compared with attend()'s.
  std::int64_t step(std::int64_t n) {
    begin(n);
    std::int64_t count = 0;
    for (std::int64_t token = 0; token < n; ++token) {
      for (int head = 0; head < kHeads; ++head) {
        double expected[kDimV] = {};
        count += counted_attention(task_, token, head, expected);
        for (int i = 0; i < kDimV; ++i) {
          // f32 against f64 on values below 5 and at most a few hundred rows
          EXPECT_NEAR(out_[static_cast<std::size_t>((token * kHeads + head) * kDimV + i)],
                      expected[i], 1e-4);
        }
      }
    }
    memory_.commit();
    return count;
  }

  /// Allocations inside attend() for one chunk.
  std::int64_t allocations(std::int64_t n) {
    begin(n);
    const std::int64_t before = n_allocations;
    attend(task_, workspace_, 0, 1);
    const std::int64_t after = n_allocations;
    memory_.commit();
    return after - before;
  }

  const ContextMemory& memory() const { return memory_; }
  std::size_t scratch() const { return workspace_.bytes(); }

 private:
  std::vector<float> random(std::int64_t n) {
    std::vector<float> values(static_cast<std::size_t>(n));
    for (float& x : values) x = normal_(random_);
    return values;
  }

  void begin(std::int64_t n) {
    memory_.begin(std::vector<TokenId>(static_cast<std::size_t>(n))).value();
    for (std::int64_t i = 0; i < n; ++i) {
      memory_.write_k(LayerIndex(0), i, random(kKvHeads * kDimK).data());
      memory_.write_v(LayerIndex(0), i, random(kKvHeads * kDimV).data());
    }
    q_ = random(n * kHeads * kDimK);
    out_.assign(static_cast<std::size_t>(n * kHeads * kDimV), 0.0f);
    task_ = {};
    task_.shape = shape();
    task_.segments = memory_.segments(LayerIndex(0));
    task_.visible = memory_.visible(LayerIndex(0));
    task_.q = q_.data();
    task_.q_token_stride = kHeads * kDimK;
    task_.q_head_stride = kDimK;
    task_.out = out_.data();
    task_.out_token_stride = kHeads * kDimV;
    task_.out_head_stride = kDimV;
    attend(task_, workspace_, 0, 1);
  }

  ContextMemory memory_;
  AttendWorkspace workspace_;
  AttendTask task_;
  std::vector<float> q_, out_;
  std::mt19937 random_{11};
  std::normal_distribution<float> normal_;
};

std::int64_t closed_form(std::int64_t before, std::int64_t n) {
  return kHeads * (kDimK + kDimV) * (n * before + n * (n + 1) / 2);
}

TEST(FoldCost, MultiplyAddsOfAStepAreTheClosedForm) {
  CountedFold fold("full");
  std::int64_t before = 0;
  for (const std::int64_t n : {1, 32, 7, 64, 100}) {
    EXPECT_EQ(fold.step(n), closed_form(before, n)) << n << " behind " << before;
    before += n;
  }
}

TEST(FoldCost, AnyChunkingCostsWhatOnePassCosts) {
  constexpr std::int64_t kTokens = 192;
  for (const std::int64_t chunk : {1, 7, 32, 100, 192}) {
    CountedFold fold("full");
    std::int64_t total = 0;
    for (std::int64_t done = 0; done < kTokens; done += chunk) {
      total += fold.step(std::min(chunk, kTokens - done));
    }
    EXPECT_EQ(total, closed_form(0, kTokens)) << "chunk " << chunk;
  }
}

TEST(FoldCost, BehindAWindowAStepCostsTheSameForEver) {
  CountedFold fold("sink(4)+window(64,block=1)");
  for (int i = 0; i < 4; ++i) fold.step(32);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(fold.step(32), kHeads * (kDimK + kDimV) * 32 * (4 + 64));
  }
}

TEST(FoldCost, BytesOfRowsAreTheClosedForm) {
  for (const std::string types : {"f32", "f16", "bf16", "q8_0", "q4_0"}) {
    StoreLayout layout;
    layout.layers = {{3, 64, 64}, {1, 128, 96}};
    layout.k_type = layout.v_type = parse_element_type(types).value();
    const auto spec = parse_memory_spec("full+kv(k=" + types + ",v=" + types + ")").value();
    ContextMemory memory = ContextMemory::create(layout, spec).value();
    // Elements a token: 3 * 128 and 224, all in whole blocks of 32.
    const std::int64_t elements = 3 * (64 + 64) + 128 + 96;
    const std::int64_t per_block = types == "f32"    ? 128
                                   : types == "q8_0" ? 34
                                   : types == "q4_0" ? 18
                                                     : 64;
    std::int64_t tokens = 0;
    for (const std::int64_t n : {1, 700, 1500}) {
      ASSERT_TRUE(memory.begin(std::vector<TokenId>(static_cast<std::size_t>(n))).ok());
      memory.commit();
      tokens += n;
      EXPECT_EQ(static_cast<std::int64_t>(memory.row_bytes_used()),
                tokens * elements / kQuantBlock * per_block)
          << types;
    }
  }
}

TEST(FoldCost, ScratchDoesNotGrowAndAttentionAllocatesNothing) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator is not counted";
#endif
  CountedFold fold("full");
  const std::size_t scratch = fold.scratch();
  EXPECT_EQ(fold.allocations(64), 0);
  for (int i = 0; i < 100; ++i) fold.allocations(64);
  EXPECT_EQ(fold.allocations(64), 0);
  EXPECT_EQ(fold.allocations(1), 0);  // the decode path
  EXPECT_EQ(fold.memory().length(), 102 * 64 + 1);
  EXPECT_EQ(fold.scratch(), scratch);
}

}  // namespace
}  // namespace volvelle::law
