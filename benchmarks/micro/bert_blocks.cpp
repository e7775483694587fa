/// The parts of a BERT layer, forward and backward on the rows of 32 texts. It measures the fused
/// blocks, the same blocks of ATen operations, and the bare matrix products in both. They run in
/// turn in one process. Prints tables in Markdown.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdio>
#include <functional>
#include <vector>

#include "encoder/blocks.h"
#include "kernels/cpu/simd/instruction_set.h"
#include "medians.h"
#include "mezzo/memory/cpu_memory_pool.h"

namespace {

using namespace mezzo::encoder;
using Tensors = std::vector<at::Tensor>;

/// Lengths of short messages, about 19.5 tokens each, and rows filled up to a multiple of 32.
SequenceLayoutPtr layout_of_32_texts(int64_t& rows) {
  auto cu_seqlens = at::zeros({33}, at::kInt), seqlens = at::empty({32}, at::kInt);
  int32_t total = 0;
  for (int b = 0; b < 32; ++b) {
    const int32_t length = 8 + (b * 7) % 24;
    seqlens[b] = length;
    cu_seqlens[b + 1] = total += length;
  }
  rows = (total + 31) / 32 * 32;
  return c10::make_intrusive<SequenceLayout>(cu_seqlens, seqlens, rows, at::kCPU);
}

struct Shape {
  const char* name;
  int64_t hidden, heads;
};

at::Tensor parameter(at::IntArrayRef sizes) { return at::randn(sizes).mul_(0.02).requires_grad_(); }

/// Runs forward, then backward from fixed gradients of the result to all `inputs`.
void step(const std::function<at::Tensor()>& forward, const Tensors& inputs, const at::Tensor& grad) {
  forward().backward(grad);
  for (const at::Tensor& input : inputs) {
    input.mutable_grad().reset();
  }
}

/// The three products of a linear layer's step.
void products(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& grad) {
  at::mm(x, weight.t());
  at::mm(grad, weight);
  at::mm(grad.t(), x);
}

void print_row(const char* what, const Shape& shape, const std::vector<double>& ms) {
  std::printf("| %s | %s | %.2f | %.2f | %.2f |", what, shape.name, ms[0], ms[1], ms[1] / ms[0]);
  if (ms.size() > 2) {
    std::printf(" %.2f |\n", ms[2]);
  } else {
    std::printf(" |\n");
  }
}

void run(const Shape& shape, double p) {
  int64_t rows = 0;
  const auto layout = layout_of_32_texts(rows);
  const int64_t h = shape.hidden, f = 4 * shape.hidden;
  const auto x = at::randn({rows, h}).requires_grad_(), grad = at::randn({rows, h}), wide = at::randn({rows, f});
  const auto grad_wide = at::randn({rows, f});
  const Tensors square{parameter({h, h}), parameter({h, h}), parameter({h, h}), parameter({h, h})};
  const Tensors bias{parameter({h}), parameter({h}), parameter({h}), parameter({h}), parameter({f}), parameter({h})};
  const auto up = parameter({f, h}), down = parameter({h, f});
  const auto norm_weight = at::ones({h}).requires_grad_(), norm_bias = parameter({h});
  const LayerNormParams norm{norm_weight, norm_bias, 1e-12};
  const DropoutSite site{p, {1, 2, 3}};
  Tensors all{x, up, down, norm_weight, norm_bias};
  all.insert(all.end(), square.begin(), square.end());
  all.insert(all.end(), bias.begin(), bias.end());

  const AttentionParams attention_params{
      .query_key_value = {{square[0], bias[0]}, {square[1], bias[1]}, {square[2], bias[2]}},
      .output = {square[3], bias[3]},
      .norm = norm,
      .attention = {.num_heads = shape.heads, .dropout = site},
      .output_dropout = site};
  const auto attention = [&] { return attention_block(x, attention_params, layout); };
  const auto attention_of_aten = [&] { return reference::attention_block(x, attention_params, layout); };
  print_row("attention block", shape,
            medians_of({[&] { step(attention, all, grad); }, [&] { step(attention_of_aten, all, grad); },
                        [&] {
                          const at::NoGradGuard no_grad;
                          for (const auto& weight : square) {
                            products(x, weight, grad);
                          }
                        }}));

  const FeedForwardParams feed_forward_params{.intermediate = {up, bias[4]},
                                              .output = {down, bias[5]},
                                              .activation = Activation::kGelu,
                                              .norm = norm,
                                              .dropout = site};
  const auto feed_forward = [&] { return feed_forward_block(x, feed_forward_params, {}); };
  const auto feed_forward_of_aten = [&] { return reference::feed_forward_block(x, feed_forward_params, {}); };
  print_row("feed-forward block", shape,
            medians_of({[&] { step(feed_forward, all, grad); }, [&] { step(feed_forward_of_aten, all, grad); },
                        [&] {
                          const at::NoGradGuard no_grad;
                          products(x, up, grad_wide);
                          products(wide, down, grad);
                        }}));

  const auto word = parameter({21128, h}), position = parameter({512, h}), type = parameter({2, h});
  const auto ids = at::randint(21128, {rows}, at::kLong), positions = at::arange(rows).remainder(32);
  const Tensors tables{word, position, type, norm_weight, norm_bias};
  const auto embed = [&] { return embedding_layer_norm(word, position, type, ids, positions, {}, norm, site); };
  const auto embed_of_aten = [&] {
    return reference::embedding_layer_norm(word, position, type, ids, positions, {}, norm, site);
  };
  print_row("embeddings", shape,
            medians_of({[&] { step(embed, tables, grad); }, [&] { step(embed_of_aten, tables, grad); }}));
}

}  // namespace

int main() {
  mezzo::use_cpu_memory_pool();
  std::printf("%d threads, kernels for %s, float32, dropout 0.1, median of %d runs\n\n", at::get_num_threads(),
              mezzo::kernels::cpu::name_of(mezzo::kernels::cpu::instruction_set()), kRuns);
  std::printf("| forward and backward | model | fused, ms | ATen, ms | times | LibTorch's products alone, ms |\n");
  std::printf("|---|---|---|---|---|---|\n");
  for (const Shape& shape : {Shape{"MiniLM", 384, 12}, Shape{"BERT-base", 768, 12}}) {
    run(shape, 0.1);
  }
}
