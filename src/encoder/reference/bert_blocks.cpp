#include "encoder/bert_blocks.h"

#include <ATen/ATen.h>

#include "kernels/dropout.h"

namespace mezzo::kernels {
namespace {

at::Tensor layer_norm(const at::Tensor& x, const LayerNormParams& norm) {
  return at::layer_norm(x, {x.size(1)}, norm.weight, norm.bias, norm.eps);
}

}  // namespace

at::Tensor embedding_layer_norm(const at::Tensor& word,
                                const at::Tensor& position,
                                const at::Tensor& token_type,
                                const at::Tensor& ids,
                                const at::Tensor& positions,
                                const LayerNormParams& norm,
                                const DropoutSite& site) {
  const auto sum = at::embedding(word, ids) + token_type.select(0, 0) + at::embedding(position, positions);
  return dropout(layer_norm(sum, norm), site.p, site.key);
}

at::Tensor linear_activation(const at::Tensor& x,
                             const at::Tensor& weight,
                             const at::Tensor& bias,
                             Activation activation) {
  const auto rows = at::linear(x, weight, bias);
  switch (activation) {
    case Activation::kGelu: return at::gelu(rows);
    case Activation::kGeluTanh: return at::gelu(rows, "tanh");
    case Activation::kRelu: return at::relu(rows);
  }
  TORCH_INTERNAL_ASSERT(false, "unknown activation");
}

at::Tensor residual_layer_norm(const at::Tensor& x,
                               const at::Tensor& residual,
                               const LayerNormParams& norm,
                               const DropoutSite& site) {
  return layer_norm(dropout(x, site.p, site.key) + residual, norm);
}

}  // namespace mezzo::kernels
