/// The matrix products of a BERT layer: by mezzo, by at::mm, and by oneDNN's linear layer as torch.compile calls it,
/// with weights in their usual order and reordered once. Mezzo computes independent products together. All run in the
/// same process and in turn. Prints a table in Markdown.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "encoder/cpu/products.h"
#include "encoder/packed_weights.h"
#include "kernels/cpu/simd/instruction_set.h"
#include "medians.h"
#include "mezzo/amp/cpu_half_compute.h"
#include "mezzo/memory/cpu_memory_pool.h"

namespace {

using mezzo::encoder::cpu::Products;

constexpr int64_t kRows = 640;  // of 32 short texts

struct Pair {
  at::Tensor left, right;
};

double gflop(const std::vector<Pair>& pairs) {
  double sum = 0;
  for (const auto& [left, right] : pairs) {
    sum += 2e-9 * static_cast<double>(left.numel() * right.size(1));
  }
  return sum;
}

at::Tensor onednn(const at::Tensor& left, const at::Tensor& weight) {
  using Scalars = c10::List<std::optional<at::Scalar>>;
  static const auto linear = c10::Dispatcher::singleton()
                                 .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                                 .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                                                   std::string_view, Scalars, std::optional<std::string_view>)>();
  return linear.call(left, weight, std::nullopt, "none", Scalars(), std::nullopt);
}

at::Tensor reordered(const at::Tensor& weight) {
  static const auto reorder = c10::Dispatcher::singleton()
                                  .findSchemaOrThrow("mkldnn::_reorder_linear_weight", "")
                                  .typed<at::Tensor(const at::Tensor&, std::optional<int64_t>)>();
  return reorder.call(weight, kRows);
}

void print_row(const char* what, const char* model, at::ScalarType dtype, const std::vector<Pair>& pairs) {
  std::vector<Pair> packed;
  std::vector<at::Tensor> reordered_weights;
  for (const auto& [left, right] : pairs) {
    packed.push_back({left, mezzo::encoder::packed_weight(right.t(), dtype).t()});
    reordered_weights.push_back(reordered(right.t()));
  }
  const auto mezzo_products = [](const std::vector<Pair>& of) {
    return [&of] {
      Products products;
      for (const auto& [left, right] : of) {
        products.add(left, right);
      }
      products.compute();
    };
  };
  const auto ms = medians_of({mezzo_products(pairs),
                              [&] {
                                for (const auto& [left, right] : pairs) {
                                  at::mm(left, right);
                                }
                              },
                              [&] {
                                for (const auto& [left, right] : pairs) {
                                  onednn(left, right.t());
                                }
                              },
                              mezzo_products(packed),
                              [&] {
                                for (size_t i = 0; i < pairs.size(); ++i) {
                                  onednn(pairs[i].left, reordered_weights[i]);
                                }
                              }});
  std::printf("| %s | %s | %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.0f |\n", what, model,
              at::toString(dtype), ms[0], ms[1], ms[2], std::min(ms[1], ms[2]) / ms[0], ms[3], ms[4], ms[4] / ms[3],
              1000 * gflop(pairs) / ms[0]);
}

void run(const char* model, int64_t hidden, at::ScalarType dtype) {
  const auto matrix = [&](int64_t rows, int64_t columns) { return at::randn({rows, columns}).to(dtype); };
  const int64_t wide = 4 * hidden;
  const auto x = matrix(kRows, hidden), y = matrix(kRows, wide), up = matrix(wide, hidden), down = matrix(hidden, wide);
  const std::vector<at::Tensor> grads{matrix(kRows, hidden), matrix(kRows, hidden), matrix(kRows, hidden)},
      weights{matrix(hidden, hidden), matrix(hidden, hidden), matrix(hidden, hidden)};
  std::vector<Pair> forward, backward;
  for (size_t i = 0; i < weights.size(); ++i) {
    forward.push_back({x, weights[i].t()});
    backward.push_back({grads[i], weights[i]});
    backward.push_back({grads[i].t(), x});
  }
  print_row("queries, keys, values", model, dtype, forward);
  print_row("their backward", model, dtype, backward);
  print_row("into the feed-forward layer", model, dtype, {{x, up.t()}});
  print_row("out of it", model, dtype, {{y, down.t()}});
  print_row("its backward", model, dtype, {{grads[0].t(), y}, {y.t(), x}, {y, up}});
}

}  // namespace

int main() {
  const at::NoGradGuard no_grad;
  mezzo::use_cpu_memory_pool();
  const mezzo::CpuHalfCompute half_compute;
  std::printf("%d threads, kernels for %s, median of %d runs\n\n", at::get_num_threads(),
              mezzo::kernels::cpu::name_of(mezzo::kernels::cpu::instruction_set()), kRuns);
  std::printf(
      "| products | model | dtype | mezzo, ms | at::mm, ms | oneDNN, ms | times the better | mezzo, packed weights, ms "
      "| "
      "oneDNN, packed weights, ms | times | mezzo, GFLOP/s |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    run("MiniLM", 384, dtype);
    run("BERT-base", 768, dtype);
  }
}
