// Memory specs: the grammar, canonical text, what is refused and how it is said, and where windows
// begin.
//
// The round trip is tried on 20,000 seeded random specs; E(t) against its definition with rational
// floor by counting.
#include <gtest/gtest.h>

#include <random>

#include "volvelle/memory/memory_spec.hpp"

namespace volvelle {
namespace {

MemorySpec parsed(std::string_view text) {
  const auto spec = parse_memory_spec(text);
  EXPECT_TRUE(spec.ok()) << text << ": " << (spec.ok() ? "" : spec.error().message);
  return spec.ok() ? *spec : MemorySpec{};
}

void expect_error(std::string_view text, std::initializer_list<std::string_view> parts) {
  const auto spec = parse_memory_spec(text);
  ASSERT_FALSE(spec.ok()) << text << " parsed as " << to_string(*spec);
  const std::string& message = spec.error().message;
  EXPECT_EQ(spec.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(message.rfind("memory spec: ", 0), 0u) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos);
  for (const std::string_view part : parts) {
    EXPECT_NE(message.find(part), std::string::npos) << text << ": " << message;
  }
}

TEST(MemorySpec, ReadsEveryTerm) {
  EXPECT_EQ(parsed("full"), MemorySpec::full_memory());
  const MemorySpec stream = parsed("sink(4)+window(4096)");
  EXPECT_EQ(stream.sink, 4);
  EXPECT_EQ(stream.window, (WindowTerm{4096, 64}));
  EXPECT_FALSE(stream.full);
  EXPECT_FALSE(stream.keeps_everything());
  EXPECT_EQ(parsed("window(1020,block=1)").window, (WindowTerm{1020, 1}));

  const MemorySpec topk = parsed("full+topk(k=64,index=pca,rank=32,bits=3,tail=none,cert=dither)");
  EXPECT_EQ(topk.topk,
            (TopkTerm{64, std::nullopt, "pca", 3, 32, "none", "dither", "token", std::nullopt}));
  const MemorySpec bounded = parsed("full+topk(max_error=0.05,index=saki,cert=exact)");
  EXPECT_EQ(bounded.topk->max_error, 0.05);
  EXPECT_EQ(bounded.topk->min, std::nullopt);
  EXPECT_EQ(parsed("full+topk(k=8,min=4096)").topk->min, 4096);
  EXPECT_EQ(to_string(parsed("full+topk(min=4096,tail=none,k=8)")),
            "full+topk(k=8,min=4096,tail=none)");
  EXPECT_EQ(bounded.topk->cert, "exact");
  EXPECT_EQ(bounded.topk->k, std::nullopt);

  EXPECT_EQ(parsed("sink(4)+window(1024)+tail(summary,entries=64)").tail,
            (TailTerm{"summary", 64}));
  const MemorySpec disk = parsed(R"(window(64)+store(disk="/a b/c)+\"d\\"))");
  EXPECT_EQ(disk.store, (StoreTerm{"disk", R"(/a b/c)+"d\)"}));
  EXPECT_TRUE(disk.keeps_everything());
  EXPECT_EQ(parsed("window(64)+store(mpi)").store, (StoreTerm{"mpi", ""}));
  EXPECT_EQ(parsed("full+kv(k=q8_0,v=q4_0)").kv, (KvTerm{"q8_0", "q4_0"}));
  EXPECT_EQ(parsed("full+kv(v=f32)").kv, (KvTerm{"f16", "f32"}));
  EXPECT_EQ(parsed("dense_layers=0-1+full").dense_layers, (LayerRange{0, 1}));
}

TEST(MemorySpec, CanonicalText) {
  const auto canonical = [](std::string_view text) { return to_string(parsed(text)); };
  EXPECT_EQ(canonical("full"), "full");
  EXPECT_EQ(canonical(" window( 4096 , block=64 ) + sink(04) "), "sink(4)+window(4096)");
  EXPECT_EQ(canonical("window(9,block=1)"), "window(9,block=1)");
  EXPECT_EQ(canonical("topk(cert=none,bits=3,tail=coded,index=saki,k=128)+full"),
            "full+topk(k=128,bits=3)");
  EXPECT_EQ(canonical("full+topk(max_error=5e-2,cert=exact)"),
            "full+topk(max_error=0.05,cert=exact)");
  EXPECT_EQ(canonical("dense_layers=0-1+kv(k=bf16)+full"),
            "full+kv(k=bf16,v=f16)+dense_layers=0-1");
  EXPECT_EQ(canonical(R"(store(disk="a\"b\\")+tail(mean)+window(8))"),
            R"(window(8)+tail(mean)+store(disk="a\"b\\"))");
}

template <class T>
T pick(std::mt19937_64& random, std::initializer_list<T> choices) {
  return choices.begin()[random() % choices.size()];
}

std::int64_t random_count(std::mt19937_64& random) {
  return 1 + static_cast<std::int64_t>(random() % (std::uint64_t{1} << (random() % 40)));
}

TopkTerm random_topk(std::mt19937_64& random) {
  TopkTerm topk;
  if (random() % 2) topk.k = random_count(random);
  if (!topk.k || random() % 2) {
    topk.max_error = std::uniform_real_distribution<double>(1e-12, 0.999)(random);
  }
  topk.index = pick<const char*>(random, {"saki", "pca", "dims", "exact"});
  if (random() % 2) topk.bits = 1 + static_cast<int>(random() % 16);
  if (random() % 2) topk.rank = 1 + static_cast<int>(random() % 512);
  topk.tail = pick<const char*>(random, {"coded", "none"});
  topk.cert = pick<const char*>(random, {"exact", "dither", "none"});
  topk.anchor = pick<const char*>(random, {"token", "block"});
  return topk;
}

std::string random_path(std::mt19937_64& random) {
  std::string path;
  const std::size_t n = 1 + random() % 12;
  for (std::size_t i = 0; i < n; ++i) {
    // Anything but control characters, the grammar's own among them, and bytes of UTF-8.
    path += random() % 2 ? pick(random, {'"', '\\', '+', ')', '(', ',', '=', ' ', '\xC3'})
                         : static_cast<char>(0x21 + random() % 94);
  }
  return path;
}

// A random spec that makes sense.
MemorySpec random_spec(std::mt19937_64& random) {
  MemorySpec spec;
  spec.full = random() % 2 == 0;
  if (!spec.full) {
    if (random() % 2) spec.sink = random_count(random);
    spec.window = WindowTerm{random_count(random), random() % 2 ? 64 : random_count(random)};
    if (random() % 2) {
      spec.tail = TailTerm{pick<const char*>(random, {"summary", "outer", "koopman", "mean"}), {}};
      if (random() % 2) spec.tail->entries = random_count(random);
    }
    if (random() % 4 == 0) spec.store = StoreTerm{"mpi", ""};
    if (random() % 4 == 0) spec.store = StoreTerm{"disk", random_path(random)};
  }
  if (random() % 2) spec.topk = random_topk(random);
  const auto type = [&] {
    return std::string(pick<const char*>(random, {"f32", "f16", "bf16", "q8_0", "q4_0"}));
  };
  if (random() % 2) spec.kv = KvTerm{type(), type()};
  if (random() % 2) {
    const std::int64_t first = random_count(random) - 1;
    spec.dense_layers = LayerRange{first, first + random_count(random) - 1};
  }
  return spec;
}

TEST(MemorySpec, TextReadsBackAsTheSameSpec) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 20000; ++i) {
    const MemorySpec spec = random_spec(random);
    const std::string text = to_string(spec);
    const auto back = parse_memory_spec(text);
    ASSERT_TRUE(back.ok()) << text << ": " << back.error().message;
    ASSERT_EQ(*back, spec) << text;
    ASSERT_EQ(to_string(*back), text);
  }
}

TEST(MemorySpec, UnknownNamesListTheKnownOnes) {
  expect_error("fulll", {"'fulll'", "known terms: full, sink(n), window(n[,block=B])", "topk",
                         "tail", "store", "kv", "dense_layers"});
  expect_error("window(8,blok=1)", {"'blok'", "'window'", "known keys: block"});
  expect_error("sink(4,n=1)+window(8)", {"'n'", "'sink'", "known keys: none"});
  expect_error("full+topk(k=1,foo=2)",
               {"'foo'", "k, max_error, index, bits, rank, min, tail, cert"});
  expect_error("full+topk(k=1,min=1023)", {"min of topk", "1024"});
  expect_error("full+topk(k=1,min=x)", {"min of topk"});
  expect_error("full+topk(k=1,index=faiss)", {"'faiss'", "saki, pca, dims, exact"});
  expect_error("full+topk(k=1,tail=mean)", {"'mean'", "coded, none"});
  expect_error("full+topk(k=1,cert=maybe)", {"'maybe'", "exact, dither, none"});
  expect_error("window(8)+tail(avg)", {"'avg'", "summary, outer, koopman, mean, none"});
  expect_error("window(8)+store(tape)", {"'tape'", "disk", "mpi"});
  expect_error("full+kv(k=f64)", {"'f64'", "f32, f16, bf16, q8_0, q4_0"});
  expect_error("full+kv(q=f16)", {"'q'", "known keys: k, v"});
}

TEST(MemorySpec, DuplicatesAndContradictions) {
  expect_error("full+full", {"'full'", "twice"});
  expect_error("window(8)+sink(1)+window(8)", {"'window'", "twice"});
  expect_error("window(8,block=1,block=1)", {"'block'", "twice"});
  expect_error("full+window(8)", {"'full'", "'window'"});
  expect_error("full+sink(8)", {"'full'", "'sink'"});
  expect_error("full+tail(mean)", {"'full'", "'tail'"});
  expect_error("full+store(mpi)", {"'full'", "'store'"});
  expect_error("sink(4)", {"sink(n) needs window(n)"});
  expect_error("kv(k=f32)", {"which tokens are kept", "full"});
  expect_error("topk(k=3)", {"which tokens are kept"});
  expect_error("full+topk(index=saki)", {"k=N", "max_error=E"});
  expect_error("window(8)+tail(none,entries=3)", {"tail(none)"});
  expect_error("window(8)+store(mpi,disk=\"x\")", {"store"});
}

TEST(MemorySpec, NumbersOutOfRange) {
  for (const char* n :
       {"0", "-1", "1e30", "1.5", "99999999999999999999999", "1099511627777", "0x8", "+8", "nan"}) {
    const std::string number(n);
    expect_error("window(" + number + ")", {});
    expect_error("window(8,block=" + number + ")", {});
    expect_error("sink(" + number + ")+window(8)", {});
    expect_error("full+topk(k=" + number + ")", {});
    expect_error("full+topk(k=1,bits=" + number + ")", {});
    expect_error("full+topk(k=1,rank=" + number + ")", {});
    expect_error("window(8)+tail(mean,entries=" + number + ")", {});
  }
  for (const char* e : {"0", "1", "-0.1", "1e30", "1e999", "nan", "inf", "0.1.2", "0,1", "abc"}) {
    expect_error("full+topk(max_error=" + std::string(e) + ")", {});
  }
  EXPECT_EQ(parsed("window(1099511627776)").window->tokens, std::int64_t{1} << 40);
  for (const char* layers : {"1-0", "-1-2", "0", "0-", "-0", "a-b", "0-1-2", "0-1e3"}) {
    expect_error("full+dense_layers=" + std::string(layers), {"dense_layers"});
  }
}

TEST(MemorySpec, Junk) {
  for (const char* text : {"",
                           " ",
                           "+",
                           "full+",
                           "+full",
                           "full full",
                           "full)",
                           "full(",
                           "full()",
                           "full=1",
                           "full,",
                           "window",
                           "window()",
                           "window(8",
                           "window(8))",
                           "window(8,)",
                           "window(,8)",
                           "window(8)x",
                           "window(8 9)",
                           "window(block=1,8)",
                           "window(block=1)",
                           "window(8,9)",
                           "window(\"8\")",
                           "window(8,block=\"1\")",
                           "window=8",
                           "topk",
                           "full+topk()",
                           "full+kv()",
                           "full+kv(f16)",
                           "full+kv(k=)",
                           "full+kv(k=\"f16\")",
                           "window(8)+store(disk=x)",
                           "window(8)+store(disk)",
                           "window(8)+store(disk=\"\")",
                           "window(8)+store(disk=\"x)",
                           "window(8)+store(disk=\"x\\",
                           "window(8)+store(disk=\"\\n\")",
                           "window(8)+store(disk=\"a\nb\")",
                           "window(8)+store()",
                           "dense_layers",
                           "full+dense_layers",
                           "full+dense_layers=",
                           "full+dense_layers(0-1)",
                           "FULL",
                           "full;drop",
                           "full\n"}) {
    expect_error(text, {});
  }
}

// Cutting or mutating valid text may give another valid spec, never a crash, and always a canonical
// one.
TEST(MemorySpec, DamagedTextIsRefusedOrCanonical) {
  std::mt19937_64 random(4);
  int n_refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string text = to_string(random_spec(random));
    text[random() % text.size()] = static_cast<char>(random() % 256);
    if (random() % 2) text.resize(random() % text.size());
    const auto spec = parse_memory_spec(text);
    if (!spec.ok()) {
      ++n_refused;
      ASSERT_EQ(spec.error().message.find('\n'), std::string::npos);
      continue;
    }
    ASSERT_EQ(*parse_memory_spec(to_string(*spec)), *spec) << text;
  }
  EXPECT_GT(n_refused, 10000);
}

TEST(MemorySpec, SupportedInThisVersion) {
  for (const char* text :
       {"full", "full+kv(k=f32,v=f16)", "sink(4)+window(64)", "window(8,block=1)",
        "sink(1)+window(9)+kv(v=f32)", "full+kv(k=bf16,v=q8_0)", "window(8)+kv(v=q4_0)",
        "full+topk(k=8)", "full+topk(k=64,rank=32,tail=none)", "full+topk(k=64,index=pca,bits=4)",
        "full+topk(max_error=0.05,cert=exact)+dense_layers=0-1",
        "full+topk(max_error=0.05,cert=dither)", "full+topk(k=64,anchor=block)",
        "full+topk(k=64,cert=dither,bits=5)"}) {
    EXPECT_TRUE(require_supported(parsed(text)).ok()) << text;
  }
  const auto refused = [](std::string_view text, std::string_view name) {
    const Status status = require_supported(parsed(text));
    ASSERT_FALSE(status.ok()) << text;
    EXPECT_EQ(status.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(status.error().message.find(name), std::string::npos) << status.error().message;
    EXPECT_NE(status.error().message.find("supported: full, full+topk"), std::string::npos);
  };
  refused("full+topk(k=8,index=exact)",
          "memory spec: index=exact of term 'topk' is not built yet in this version");
  refused("full+topk(k=8,index=exact)", "index=exact");
  refused("window(64)+topk(k=8)", "term 'topk' without 'full'");
  refused("window(8)+tail(mean)", "term 'tail'");
  refused("window(8)+store(mpi)", "term 'store'");
  refused("full+dense_layers=0-1", "term 'dense_layers' without 'topk'");
}

TEST(MemorySpec, NumbersThatNoIndexCanHaveAreRefused) {
  const auto refused = [](std::string_view text, std::string_view reason) {
    const Status status = require_supported(parsed(text));
    ASSERT_FALSE(status.ok()) << text;
    EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(status.error().message.find(reason), std::string::npos) << status.error().message;
  };
  refused("full+topk(k=8,bits=1)", "bits of topk must be 2 to 8");
  refused("full+topk(k=8,bits=9)", "bits of topk must be 2 to 8");
  refused("full+topk(k=8,rank=32,bits=4)", "leave bits out, or rank");
  refused("full+topk(k=8,cert=exact,bits=4)", "cert=exact needs all coordinates");
  refused("full+topk(k=8,cert=exact,rank=16)", "cert=exact needs all coordinates");
  refused("full+topk(k=8,cert=exact,index=pca)", "cert=exact needs all coordinates");
}

TEST(MemorySpec, SpecsMadeInCodeAreCheckedToo) {
  const auto code = [](const MemorySpec& spec) { return require_supported(spec).error().code; };
  EXPECT_EQ(code(MemorySpec{}), ErrorCode::kInvalidArgument);
  MemorySpec both = MemorySpec::full_memory();
  both.window = WindowTerm{8, 8};
  EXPECT_EQ(code(both), ErrorCode::kInvalidArgument);
  MemorySpec zero_block;
  zero_block.window = WindowTerm{8, 0};
  EXPECT_EQ(code(zero_block), ErrorCode::kInvalidArgument);
}

TEST(MemorySpec, KvTypes) {
  EXPECT_EQ(kv_types(parsed("full"))->k, ElementType::kF16);
  EXPECT_EQ(kv_types(parsed("full+kv(k=f32)"))->k, ElementType::kF32);
  EXPECT_EQ(kv_types(parsed("full+kv(k=f32)"))->v, ElementType::kF16);
  EXPECT_EQ(kv_types(parsed("full+kv(k=bf16,v=q4_0)"))->k, ElementType::kBF16);
  EXPECT_EQ(kv_types(parsed("full+kv(k=bf16,v=q4_0)"))->v, ElementType::kQ4_0);
  MemorySpec unknown = MemorySpec::full_memory();
  unknown.kv = KvTerm{"f16", "q7"};
  EXPECT_FALSE(kv_types(unknown).ok());
}

// The largest multiple of B that is at most t + 1 - W, found by counting up.
std::int64_t window_begin_by_counting(std::int64_t n_sink, std::int64_t w, std::int64_t b,
                                      std::int64_t t) {
  std::int64_t begin = 0;
  while (begin + b <= t + 1 - w) begin += b;
  return begin < n_sink ? n_sink : begin;
}

TEST(MemorySpec, WindowBegin) {
  MemorySpec spec;
  for (const std::int64_t sink : {0, 1, 4, 100}) {
    for (const std::int64_t w : {1, 2, 60, 64, 65, 300}) {
      for (const std::int64_t b : {1, 3, 64, 1000}) {
        spec.sink = sink;
        spec.window = WindowTerm{w, b};
        for (std::int64_t t = 0; t < 700; ++t) {
          const std::int64_t begin = window_begin(spec, t);
          ASSERT_EQ(begin, window_begin_by_counting(sink, w, b, t)) << sink << w << b << t;
          // At least the last W tokens are seen, at most W + B - 1.
          ASSERT_LE(begin, std::max(sink, t + 1 - w));
          ASSERT_GT(begin, t + 1 - w - b);
        }
      }
    }
  }
  EXPECT_EQ(window_begin(MemorySpec::full_memory(), 12345), 0);
}

}  // namespace
}  // namespace volvelle
