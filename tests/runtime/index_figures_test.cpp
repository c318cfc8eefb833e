// The index on real keys and queries: figures that an independent program (NumPy, float64) measured
// on the same models, texts and positions, which our codes must reach.
//
// Moments and bases come from one novel, the reads from another. Always exact: tokens 0 to 3 and
// the last 64. missed: attention weight outside the rows read exactly; TV: total variation of the
// weights used; error: |output - exact| / |exact|; each over layers, heads and 24 late positions.
// Our codes differ from the reference's in that widths come in fours (values: sixteens) and scales
// are half floats. A byte a row more for keys makes up for the first. Means may be 5 % above the
// reference, 95th percentiles 10 %. VOLVELLE_FULL=1 also runs swapped texts and a second model.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string_view>

#include "index/stored_rows.hpp"
#include "kernels/convert.hpp"
#include "runtime/support.hpp"
#include "volvelle/base/half.hpp"
#include "volvelle/index/code_index.hpp"

namespace volvelle::test {
namespace {

constexpr const char* kGemmaQ4 = "gemma-3-270m-q4_k_m.gguf";
constexpr const char* kEmma = "emma.txt";
constexpr const char* kPride = "prideprejudice.txt";
constexpr std::array<int, 3> kRowsRead = {64, 128, 256};

/// Layers without a window of a model, as the reference captured them.
struct Captured {
  const char* model;
  std::int64_t n_tokens;
  std::vector<std::int64_t> layers;
  AttentionShape shape;
};

const Captured& smol() {
  static const Captured captured{
      kSmolQ41,
      4096,
      {0, 4, 9, 14, 19, 24, 29},
      {.n_heads = 9, .n_kv_heads = 3, .head_dim_k = 64, .head_dim_v = 64, .scale = 0.125f}};
  return captured;
}

/// Its queries are scaled before the product.
const Captured& gemma() {
  static const Captured captured{
      kGemmaQ4,
      8192,
      {5, 11, 17},
      {.n_heads = 4, .n_kv_heads = 1, .head_dim_k = 256, .head_dim_v = 256, .scale = 1.0f}};
  return captured;
}

/// Queries, keys and values of one layer; rows as a store has them, in f16.
struct Capture {
  std::vector<float> q;      // [token, head, dim]
  std::vector<std::byte> k;  // [kv head, token, dim]
  std::vector<std::byte> v;
  std::int64_t n_tokens = 0;

  KeyValueSegment segment() const {
    const std::size_t stride = k.size() / n_kv_heads;
    return {0, n_tokens, k.data(), v.data(), stride, stride};
  }
  std::size_t n_kv_heads = 1;
};
using Captures = std::map<std::int64_t, Capture>;

Captures capture(const Captured& from, const std::string& text) {
  const Model model = load_model(from.model);
  const AttentionShape& shape = from.shape;
  Captures layers;
  const std::size_t row = row_bytes(ElementType::kF16, shape.head_dim_k);
  for (const std::int64_t layer : from.layers) {
    Capture& c = layers[layer];
    c.n_tokens = from.n_tokens;
    c.n_kv_heads = static_cast<std::size_t>(shape.n_kv_heads);
    c.q.resize(static_cast<std::size_t>(from.n_tokens * shape.n_heads * shape.head_dim_k));
    c.k.resize(static_cast<std::size_t>(from.n_tokens * shape.n_kv_heads) * row);
    c.v.resize(c.k.size());
  }
  SessionOptions options;
  options.n_threads = 2;
  options.capture = [&](const CapturedRows& rows) {
    const auto found = layers.find(rows.layer.value());
    if (found == layers.end()) return;
    for (std::int64_t t = 0; t < rows.n_tokens; ++t) {
      const std::int64_t token = rows.first_position.value() + t;
      for (std::int64_t h = 0; h < rows.n_heads; ++h) {
        const float* data = rows.data + t * rows.token_stride + h * rows.head_stride;
        if (rows.kind == CapturedRows::Kind::kQuery) {
          std::copy_n(data, rows.head_dim,
                      found->second.q.begin() + (token * shape.n_heads + h) * rows.head_dim);
          continue;
        }
        auto& plane = rows.kind == CapturedRows::Kind::kKey ? found->second.k : found->second.v;
        convert_row(data, plane.data() + static_cast<std::size_t>(h * from.n_tokens + token) * row,
                    ElementType::kF16, rows.head_dim);
      }
    }
  };
  Session session = require(Session::create(model, options));
  ContextMemory memory = require(session.begin(MemorySpec::full_memory()));
  const auto tokens = book_tokens(model, text, static_cast<std::size_t>(from.n_tokens));
  require(session.step(memory, tokens, Logits::kNone));
  return layers;
}

/// Each text is read once, whichever way round it is used.
const Captures& captures_of(const Captured& from, const std::string& text) {
  static std::map<std::pair<std::string, std::string>, Captures> all;
  const auto [at, is_new] = all.try_emplace({from.model, text});
  if (is_new) at->second = capture(from, text);
  return at->second;
}

struct Sample {
  std::vector<double> values;
  void add(const Sample& other) {
    values.insert(values.end(), other.values.begin(), other.values.end());
  }
  double mean() const {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  }
  double p95() const {
    std::vector<double> x = values;
    std::sort(x.begin(), x.end());
    const double at = 0.95 * static_cast<double>(x.size() - 1);
    const auto low = static_cast<std::size_t>(at);
    const double part = at - static_cast<double>(low);
    return x[low] * (1 - part) + x[std::min(low + 1, x.size() - 1)] * part;
  }
};
struct Figures {
  Sample missed, variation, error;
  void add(const Figures& other) {
    missed.add(other.missed);
    variation.add(other.variation);
    error.add(other.error);
  }
};
/// Over all layers, and those of k = 128 by layer.
struct AllFigures {
  std::map<int, Figures> by_k;
  std::map<std::int64_t, Figures> by_layer;
};

using Rows = std::vector<std::vector<double>>;

/// Keys and values of one KV head: exact, and as their codes stand for them.
struct HeadRows {
  Rows keys, values, coded_keys, coded_values;  // coded keys without what all scores share
};

std::vector<double> decoded(const RowCode& code, CodeSide side, const CodedRows& rows, int row) {
  const std::vector<float> x = decode_row(code, side, rows, row);
  std::vector<double> out(code.mean.begin(), code.mean.end());
  for (std::size_t i = 0; i < x.size(); ++i) {
    for (std::size_t j = 0; j < out.size(); ++j)
      out[j] += static_cast<double>(x[i]) * static_cast<double>(code.decode[i * out.size() + j]);
  }
  return out;
}

HeadRows head_rows(const Capture& test, const AttentionShape& shape, const CodeIndex& index,
                   int kv_head) {
  HeadRows rows;
  const KeyValueSegment segment = test.segment();
  const StoredRows stored(shape, {&segment, 1});
  std::vector<float> row(static_cast<std::size_t>(shape.head_dim_k));
  const auto h = static_cast<std::size_t>(kv_head);
  for (std::int64_t t = 0; t < test.n_tokens; ++t) {
    stored.load_keys(kv_head, t, 1, row.data());
    rows.keys.emplace_back(row.begin(), row.end());
    stored.load_values(kv_head, t, 1, row.data());
    rows.values.emplace_back(row.begin(), row.end());
    const HeadTile tile = index.head_tile(kv_head, t / kCodeTile);
    const auto at = static_cast<int>(t % kCodeTile);
    rows.coded_keys.push_back(decoded(
        index.code().keys[h], CodeSide::kKeys,
        {const_cast<std::byte*>(tile.key_levels), const_cast<std::uint16_t*>(tile.key_scales)},
        at));
    rows.coded_values.push_back(decoded(
        index.code().values[h], CodeSide::kValues,
        {const_cast<std::byte*>(tile.value_levels), const_cast<std::uint16_t*>(tile.value_scales)},
        at));
  }
  return rows;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

/// Weights e^(s - top) of one query head over the rows up to its position, exact and coded.
struct HeadWeights {
  std::vector<double> exact, coded;
};

/// Rows [kSinks, n - kRecent) may be left to their codes.
constexpr std::size_t kSinks = 4;
constexpr std::size_t kRecent = 64;
bool may_be_coded(std::size_t t, std::size_t n) { return t >= kSinks && t < n - kRecent; }

/// Also adds the head's share of the coded softmax to each row's place in the order.
HeadWeights head_weights(const std::vector<double>& query, const HeadRows& rows, double scale,
                         std::vector<double>& order) {
  HeadWeights w;
  const std::size_t n = order.size();
  double top = -1e300;
  for (std::size_t t = 0; t < n; ++t) {
    w.exact.push_back(scale * dot(query, rows.keys[t]));
    w.coded.push_back(scale * dot(query, rows.coded_keys[t]));
    top = std::max(top, w.exact[t]);
  }
  double total = 0.0;
  for (std::size_t t = 0; t < n; ++t) {
    w.exact[t] = std::exp(w.exact[t] - top);
    w.coded[t] = std::exp(std::min(w.coded[t] - top, 20.0));
    total += may_be_coded(t, n) ? w.coded[t] : w.exact[t];
  }
  for (std::size_t t = kSinks; t < n - kRecent; ++t) order[t] += w.coded[t] / total;
  return w;
}

/// One head's read when `tail` is left to the codes.
void add_read(const HeadRows& rows, const HeadWeights& w, const std::vector<bool>& tail,
              Figures& figures) {
  double exact_sum = 0.0, used_sum = 0.0, missed = 0.0;
  for (std::size_t t = 0; t < tail.size(); ++t) {
    exact_sum += w.exact[t];
    used_sum += tail[t] ? w.coded[t] : w.exact[t];
    missed += tail[t] ? w.exact[t] : 0.0;
  }
  double variation = 0.0;
  std::vector<double> exact(rows.values[0].size(), 0.0), used = exact;
  for (std::size_t t = 0; t < tail.size(); ++t) {
    const double p = w.exact[t] / exact_sum;
    const double u = (tail[t] ? w.coded[t] : w.exact[t]) / used_sum;
    variation += std::abs(p - u) / 2;
    const std::vector<double>& v = tail[t] ? rows.coded_values[t] : rows.values[t];
    for (std::size_t j = 0; j < exact.size(); ++j) {
      exact[j] += p * rows.values[t][j];
      used[j] += u * v[j];
    }
  }
  double difference = 0.0;
  for (std::size_t j = 0; j < exact.size(); ++j) difference += std::pow(used[j] - exact[j], 2);
  figures.missed.values.push_back(missed / exact_sum);
  figures.variation.values.push_back(variation);
  figures.error.values.push_back(std::sqrt(difference / dot(exact, exact)));
}

void read_position(const Capture& test, const AttentionShape& shape, const HeadRows& rows,
                   int kv_head, std::int64_t position, std::map<int, Figures>& figures) {
  const auto n = static_cast<std::size_t>(position) + 1;
  std::vector<HeadWeights> heads;
  std::vector<double> order(n, 0.0);
  for (int g = 0; g < shape.group(); ++g) {
    const std::int64_t head = position * shape.n_heads + kv_head * shape.group() + g;
    const float* q = test.q.data() + head * shape.head_dim_k;
    heads.push_back(
        head_weights({q, q + shape.head_dim_k}, rows, static_cast<double>(shape.scale), order));
  }
  std::vector<std::size_t> best(n - kRecent - kSinks);
  std::iota(best.begin(), best.end(), kSinks);
  std::sort(best.begin(), best.end(), [&](auto a, auto b) { return order[a] > order[b]; });
  for (const int k : kRowsRead) {
    std::vector<bool> tail(n, false);
    for (std::size_t i = static_cast<std::size_t>(k); i < best.size(); ++i) tail[best[i]] = true;
    for (const HeadWeights& w : heads) add_read(rows, w, tail, figures[k]);
  }
}

AllFigures measure(const Captured& of, const std::string& made_of, const std::string& read) {
  const AttentionShape& shape = of.shape;
  AllFigures all;
  for (const std::int64_t layer : of.layers) {
    const Capture& from = captures_of(of, made_of).at(layer);
    const KeyValueSegment segment = from.segment();
    IndexOptions options;
    options.shrink = false;  // the reference does not
    options.max_rows = of.n_tokens;
    const QuerySample queries{from.q.data() + 4 * shape.n_heads * shape.head_dim_k,
                              of.n_tokens - 4};
    CodeIndex index(std::make_shared<LayerCode>(
        require(make_layer_code(shape, {&segment, 1}, of.n_tokens, queries, options))));
    const Capture& test = captures_of(of, read).at(layer);
    const KeyValueSegment rows = test.segment();
    CodeScratch scratch;
    for (std::int64_t t = 0; t < of.n_tokens / kCodeTile; ++t)
      require(index.append_tile(shape, {&rows, 1}, scratch));
    std::map<int, Figures> figures;
    for (int kv_head = 0; kv_head < shape.n_kv_heads; ++kv_head) {
      const HeadRows head = head_rows(test, shape, index, kv_head);
      for (int i = 0; i < 24; ++i) {
        const double position = static_cast<double>(of.n_tokens) - 256 + 255.0 * i / 23.0;
        read_position(test, shape, head, kv_head, std::lround(position), figures);
      }
    }
    all.by_layer[layer] = figures[128];
    for (const auto& [k, f] : figures) all.by_k[k].add(f);
  }
  return all;
}

/// For each of kRowsRead. A percentile of 0 was not given.
struct Expected {
  double missed, variation, error;
  double missed_p95 = 0.0, variation_p95 = 0.0, error_p95 = 0.0;
};
struct Setting {
  const char* name;
  const Captured& (*of)();
  const char* made_of;
  const char* read;
  bool always;
  std::array<Expected, 3> expected;
  std::vector<std::pair<double, double>> by_layer = {};  // variation and error of k = 128, if given
};

void PrintTo(const Setting& setting, std::ostream* out) { *out << setting.name; }

/// `slack`: how much more a mean may be, in parts of it. Less by twice as much would be another
/// measurement: a byte more does not gain so much.
void expect_mean(const Sample& found, double mean, double slack, const char* what) {
  EXPECT_LT(found.mean(), (1 + slack) * mean) << what;
  EXPECT_GT(found.mean(), (1 - 2 * slack) * mean) << what;
}

void expect_reached(const Sample& found, double mean, double p95, const char* what) {
  std::printf("  %s %.4f/%.4f, expected %.4f/%.4f\n", what, found.mean(), found.p95(), mean, p95);
  expect_mean(found, mean, 0.05, what);
  if (p95 > 0.0) {
    EXPECT_LT(found.p95(), 1.10 * p95) << what;
  }
}

class IndexFigures : public testing::TestWithParam<Setting> {};

TEST_P(IndexFigures, ReachTheReferenceOnRealKeysAndQueries) {
  const Setting& setting = GetParam();
  if (!setting.always && std::getenv("VOLVELLE_FULL") == nullptr)
    GTEST_SKIP() << "takes minutes: VOLVELLE_FULL=1";
  const Captured& of = setting.of();
  if (std::string_view(of.model) == kGemmaQ4 && !find_input(kGemmaQ4, "models").ok())
    GTEST_SKIP() << "Gemma was not accepted in setup";
  AllFigures figures = measure(of, setting.made_of, setting.read);
  for (std::size_t i = 0; i < kRowsRead.size(); ++i) {
    SCOPED_TRACE(kRowsRead[i]);
    std::printf("k = %d\n", kRowsRead[i]);
    const Expected& e = setting.expected[i];
    const Figures& f = figures.by_k[kRowsRead[i]];
    expect_reached(f.missed, e.missed, e.missed_p95, "missed");
    // What the best rows leave is a property of the texts.
    EXPECT_GT(f.missed.mean(), 0.95 * e.missed);
    expect_reached(f.variation, e.variation, e.variation_p95, "variation");
    expect_reached(f.error, e.error, e.error_p95, "error");
  }
  for (std::size_t i = 0; i < setting.by_layer.size(); ++i) {
    SCOPED_TRACE(of.layers[i]);
    const auto [variation, error] = setting.by_layer[i];
    const Figures& f = figures.by_layer[of.layers[i]];
    std::printf("layer %d: variation %.4f, expected %.4f, error %.4f, expected %.4f\n",
                static_cast<int>(of.layers[i]), f.variation.mean(), variation, f.error.mean(),
                error);
    // Few reads, and widths in fours move each layer by itself.
    expect_mean(f.variation, variation, 0.1, "variation");
    expect_mean(f.error, error, 0.1, "error");
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, IndexFigures,
    testing::Values(
        Setting{"Smol",
                smol,
                kEmma,
                kPride,
                true,
                {{{.2125, .0155, .0126, .809, .0393, .0457},
                  {.1753, .0122, .0093, .745, .0319, .0362},
                  {.1341, .0088, .0066, .646, .0241, .0271}}},
                {{.0226, .0273},
                 {.0062, .0056},
                 {.0058, .0043},
                 {.0122, .0063},
                 {.0063, .0032},
                 {.0162, .0132},
                 {.0161, .0056}}},
        Setting{"SmolSwapped",
                smol,
                kPride,
                kEmma,
                false,
                {{{.2052, .0150, .0114}, {.1701, .0119, .0084}, {.1308, .0086, .0058}}}},
        Setting{"Gemma",
                gemma,
                kEmma,
                kPride,
                false,
                {{{.3029, .0301, .0150, .716, .0719, .0309},
                  {.2550, .0253, .0112, .614, .0622, .0222},
                  {.2045, .0203, .0080, .498, .0507, .0164}}},
                {{.0212, .0074}, {.0302, .0165}, {.0245, .0098}}},
        Setting{"GemmaSwapped",
                gemma,
                kPride,
                kEmma,
                false,
                {{{.3149, .0307, .0166}, {.2657, .0259, .0123}, {.2136, .0208, .0088}}}}),
    [](const testing::TestParamInfo<Setting>& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace volvelle::test
