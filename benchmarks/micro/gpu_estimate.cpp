#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "simulated/bert_training.h"
#include "simulated/counts.h"
#include "simulated/gpu_kernels.h"
#include "simulated/streams.h"

// What a training step gives a GPU to do, counted on the simulated device of the tests, and the
// time that this would take at an H100's published rates. Nothing is measured.

namespace {

using mezzo::simulated::BertTraining;
using mezzo::simulated::LaunchCount;
using mezzo::text::Precision;

// NVIDIA's data sheet of the H100 SXM, dense.
constexpr double kTensorFlops = 989e12, kBytesPerSecond = 3.35e12;
// Assumed: what a kernel of a graph takes besides its work, and what it takes a host to launch one.
constexpr double kSecondsInGraph = 1.5e-6, kSecondsOfHost = 5e-6;

constexpr std::array kGroups = {"embeddings",        "attention",     "feed-forward",
                                "head, loss, input", "gradient pass", "optimizer"};

struct Shape {
  const char* name;
  int64_t layers, hidden, heads, inner, words;
  std::vector<int64_t> lengths;
  bool has_flash;  ///< texts so long that LibTorch's flash attention takes them
};

/// 32 texts of 8 to 32 tokens, 640 together.
std::vector<int64_t> short_texts() {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 16; ++i) {
    lengths.push_back(20 - i % 13);
    lengths.push_back(20 + i % 13);
  }
  return lengths;
}

const Shape kBase{"BERT-base (12 × 768)", 12, 768, 12, 3072, 21128, short_texts(), false};
const Shape kMiniLm{"MiniLM (6 × 384)", 6, 384, 12, 1536, 21128, short_texts(), false};
const Shape kLarge{"BERT-large (24 × 1024)", 24, 1024, 16, 4096, 30522, std::vector<int64_t>(32, 512), true};

std::string group_of(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (has("embedding_layer_norm") || has("::Embeddings")) return "embeddings";
  if (has("attention_block") || has("Attention")) return "attention";
  if (has("feed_forward_block") || has("FeedForward")) return "feed-forward";
  if (has("summarize_gradients") || has("check_gradients") || has("update_loss_scale")) return "gradient pass";
  if (has("mezzo::adam_")) return "optimizer";
  return "";
}

struct Sum {
  int64_t launches = 0;
  double bytes = 0, flop = 0, seconds = 0;
  Sum& operator+=(const Sum& other) {
    launches += other.launches;
    bytes += other.bytes;
    flop += other.flop;
    seconds += other.seconds;
    return *this;
  }
};

/// Of packed attention over all heads, which is no product of LibTorch's: two products of a text's
/// rows forward; backward seven, since mezzo's kernel for short texts computes scores and their gradients twice, or
/// five, as flash attention does, which stands in for the kernels that are counted of long ones.
double attention_flop(const LaunchCount& launch, const Shape& shape) {
  double squares = 0;
  for (const int64_t length : shape.lengths) {
    squares += static_cast<double>(length * length);
  }
  const double one = 2 * squares * static_cast<double>(shape.hidden);
  if (launch.name == "HalfAttention" || launch.name == "Attention") return 2 * one;
  if (launch.name == "HalfAttentionBackward") return 7 * one;
  if (launch.name == "BackwardOfQueries") return 5 * one;
  return 0;
}

Sum estimate(const LaunchCount& launch, const Shape& shape) {
  Sum sum{1, static_cast<double>(launch.traffic.bytes_read + launch.traffic.bytes_written), launch.traffic.flop, 0};
  const double of_attention = attention_flop(launch, shape);
  sum.flop += of_attention;
  sum.seconds = kSecondsInGraph + std::max(sum.bytes / kBytesPerSecond, sum.flop / kTensorFlops);
  return sum;
}

struct Step {
  std::map<std::string, Sum> groups, kernels;
  std::map<LaunchCount::Kind, int64_t> launches;
  Sum all;
  double eager_seconds() const { return std::max(all.seconds, static_cast<double>(all.launches) * kSecondsOfHost); }
};

Step count(const Shape& shape, Precision precision, bool scales_loss) {
  BertTraining training(
      {.config = mezzo::simulated::bert_config(shape.layers, shape.hidden, shape.heads, shape.inner, shape.words),
       .precision = precision,
       .scales_loss = scales_loss},
      {mezzo::simulated::kType, 0});
  const auto batch = training.batch_of(shape.lengths);
  const auto run = [&] {
    training.backward(batch);
    training.update();
    training.zero_grad();
  };
  run();  // makes the moments
  mezzo::simulated::LaunchLog log(group_of);
  run();
  Step step;
  for (const LaunchCount& launch : log.take()) {
    const Sum sum = estimate(launch, shape);
    step.groups[launch.group.empty() ? "head, loss, input" : launch.group] += sum;
    step.kernels[launch.name] += sum;
    ++step.launches[launch.kind];
    step.all += sum;
  }
  TORCH_CHECK(step.kernels.contains(shape.has_flash ? "Attention" : "HalfAttention") &&
                  step.kernels.contains(shape.has_flash ? "BackwardOfQueries" : "HalfAttentionBackward"),
              "gpu_estimate: attention's kernels have other names than attention_flop() knows");
  return step;
}

struct Case {
  const Shape* shape;
  Precision precision;
  bool scales_loss;
  Step step = {};
  std::string name() const {
    return std::string(shape->name) + ", " + std::string(to_string(precision)) + (scales_loss ? ", GradScaler" : "");
  }
};

void print_steps(const std::vector<Case>& cases) {
  std::printf(
      "| step | launches: mezzo's | LibTorch's | copies | GB moved | TFLOP | ms in graphs | ms launched one by one "
      "| texts/s in graphs | of the bf16 peak |\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (const Case& each : cases) {
    const Step& step = each.step;
    const auto of_kind = [&](LaunchCount::Kind kind) {
      const auto found = step.launches.find(kind);
      return static_cast<long long>(found != step.launches.end() ? found->second : 0);
    };
    std::printf("| %s | %lld | %lld | %lld | %.2f | %.3f | %.2f | %.2f | %.0f | %.0f %% |\n", each.name().c_str(),
                of_kind(LaunchCount::Kind::kMezzo), of_kind(LaunchCount::Kind::kAten),
                of_kind(LaunchCount::Kind::kCopy), step.all.bytes / 1e9, step.all.flop / 1e12, step.all.seconds * 1e3,
                step.eager_seconds() * 1e3, static_cast<double>(each.shape->lengths.size()) / step.all.seconds,
                100 * step.all.flop / step.all.seconds / kTensorFlops);
  }
}

void print_groups(const Case& of) {
  std::printf("\n## %s\n\n| part | launches | GB moved | TFLOP | ms in graphs |\n|---|---|---|---|---|\n",
              of.name().c_str());
  for (const char* group : kGroups) {
    const Sum sum = of.step.groups.contains(group) ? of.step.groups.at(group) : Sum{};
    std::printf("| %s | %lld | %.3f | %.4f | %.3f |\n", group, static_cast<long long>(sum.launches), sum.bytes / 1e9,
                sum.flop / 1e12, sum.seconds * 1e3);
  }
}

void print_kernels(const Case& of) {
  std::printf(
      "\n## Kernels of %s\n\nA name with `aten::` is an operator of LibTorch's.\n\n| kernel | launches | GB moved "
      "| TFLOP | ms in graphs |\n|---|---|---|---|---|\n",
      of.name().c_str());
  std::vector<std::pair<std::string, Sum>> kernels(of.step.kernels.begin(), of.step.kernels.end());
  std::ranges::sort(kernels, std::greater(), [](const auto& kernel) { return kernel.second.seconds; });
  for (const auto& [name, sum] : kernels) {
    std::printf("| `%s` | %lld | %.3f | %.4f | %.3f |\n", name.c_str(), static_cast<long long>(sum.launches),
                sum.bytes / 1e9, sum.flop / 1e12, sum.seconds * 1e3);
  }
}

void print_target(const char* what, const char* to_reach, const std::string& estimated) {
  std::printf("| %s | %s | %s |\n", what, to_reach, estimated.c_str());
}

template <class... Numbers>
std::string text(const char* format, Numbers... numbers) {
  std::array<char, 100> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format, numbers...);
  return buffer.data();
}

}  // namespace

int main() {
  mezzo::simulated::set_computes(false);
  const mezzo::simulated::WithGpuKernels with_gpu_kernels;
  std::vector<Case> cases = {{&kBase, Precision::kBFloat16, false}, {&kBase, Precision::kFloat16, true},
                             {&kBase, Precision::kFloat16, false},  {&kMiniLm, Precision::kBFloat16, false},
                             {&kMiniLm, Precision::kFloat16, true}, {&kLarge, Precision::kBFloat16, false}};
  for (Case& each : cases) {
    each.step = count(*each.shape, each.precision, each.scales_loss);
  }
  print_steps(cases);
  const auto texts = [](const Case& of) { return static_cast<double>(of.shape->lengths.size()) / of.step.all.seconds; };
  const Sum& optimizer = cases[0].step.groups.at("optimizer");
  std::printf("\n| target on one H100 | to reach | estimated here |\n|---|---|---|\n");
  print_target("BERT-base, bf16", "10,000 texts/s", text("%.0f texts/s", texts(cases[0])));
  print_target("BERT-base, fp16 with GradScaler", "10,000 texts/s", text("%.0f texts/s", texts(cases[1])));
  print_target("MiniLM, bf16", "30,000 texts/s", text("%.0f texts/s", texts(cases[3])));
  print_target("BERT-large, 512 tokens packed", "40 % of the bf16 peak",
               text("%.0f %%", 100 * cases[5].step.all.flop / cases[5].step.all.seconds / kTensorFlops));
  print_target("optimizer step, BERT-base", "80 % of memory bandwidth",
               text("%.2f GB in %lld launches, which leave %.0f %% of the bandwidth that their kernels reach",
                    optimizer.bytes / 1e9, static_cast<long long>(optimizer.launches),
                    100 * optimizer.bytes / kBytesPerSecond / optimizer.seconds));
  print_target("GradScaler, BERT-base fp16", "2 % of a step at most",
               text("%.1f %%", 100 * (cases[1].step.all.seconds / cases[2].step.all.seconds - 1)));
  for (const Case& each : cases) {
    print_groups(each);
  }
  print_kernels(cases[0]);
}
