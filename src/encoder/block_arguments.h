#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string_view>
#include <vector>

#include "encoder/blocks.h"
#include "encoder/int8_weights.h"

/// The arguments of the blocks as their operators take them: checked, and turned into structs.
namespace mezzo::encoder {

using OptionalTensor = std::optional<at::Tensor>;

inline at::Tensor tensor_of(const OptionalTensor& tensor) { return tensor.value_or(at::Tensor()); }
inline int64_t seed_of(const DropoutSite& dropout) { return static_cast<int64_t>(dropout.key.seed); }

/// A dropout of the seed and step of `other`.
/// @throws c10::ValueError  unless p is in [0, 1)
inline DropoutSite beside(const DropoutSite& other, double p, int64_t site) {
  DropoutSite result = DropoutSite::of(p, seed_of(other), other.key.step, site, {}, at::kCPU);
  result.step_offset = other.step_offset;
  return result;
}

/// What attention of rows `x` gives on the Meta device.
inline at::Tensor rows_of_attention(const at::Tensor& x,
                                    const AttentionDescription& attention,
                                    const SequenceLayoutPtr& layout) {
  return x.new_empty({attention.only_first_queries ? layout->size() : x.size(0), x.size(1)});
}

/// Kernels take elements as they lie in memory.
inline at::Tensor dense(const at::Tensor& tensor) { return tensor.defined() ? tensor.contiguous() : tensor; }

/// Row numbers and ids go with the rows.
inline void check_one_a_row(const char* op, const at::Tensor& numbers, int64_t rows) {
  TORCH_CHECK_VALUE(!numbers.defined() || (numbers.dim() == 1 && numbers.size(0) == rows), "mezzo::", op, ": ", rows,
                    " rows need as many ids, positions, types or row numbers, got ", numbers.sizes());
}

inline void check_norm(const char* op, const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& bias) {
  const auto bias_sizes = bias.defined() ? bias.sizes() : weight.sizes();
  TORCH_CHECK_VALUE(
      rows.dim() == 2 && weight.dim() == 1 && weight.size(0) == rows.size(1) && weight.sizes() == bias_sizes,
      "mezzo::", op, ": a layer norm of rows ", rows.sizes(), " cannot have a weight ", weight.sizes(), " and a bias ",
      bias_sizes);
}

inline Activation parse_activation(const char* op, std::string_view name) {
  TORCH_CHECK_VALUE(name == "gelu" || name == "gelu_tanh" || name == "relu", "mezzo::", op, ": activation is '", name,
                    "', expected gelu, gelu_tanh or relu");
  return name == "gelu" ? Activation::kGelu : name == "relu" ? Activation::kRelu : Activation::kGeluTanh;
}

inline std::string_view to_string(Activation activation) {
  return activation == Activation::kGelu ? "gelu" : activation == Activation::kRelu ? "relu" : "gelu_tanh";
}

/// Whether one can stand for the other: in another dtype, or in int8.
inline bool is_copy_of(const at::Tensor& half_copy, const at::Tensor& weight) {
  const int64_t behind = is_int8_weight(half_copy) ? kInt8ScaleBytes : 0;
  return half_copy.dim() == 2 && half_copy.size(0) == weight.size(0) && half_copy.size(1) == weight.size(1) + behind;
}

/// Whether a layer has LoRA factors with dropout. Operators take none: the specification computes the block then.
template <class... Params>
bool has_lora(const Params&... layers) {
  return (layers.lora.has_value() || ...);
}

/// The linear layers of a block, as its operator takes them. All layers have a bias, or none has. The operator gets
/// half copies, which may be int8 weights, if all layers have one: layers with LoRA factors have none.
struct LinearLists {
  template <class... Params>
  explicit LinearLists(const Params&... layers)
      : weights{layers.weight...}, biases{layers.bias...}, half_copies{layers.half_copy...} {
    if (!(layers.half_copy.defined() && ...)) {
      TORCH_INTERNAL_ASSERT(!((layers.half_copy.defined() && is_int8_weight(layers.half_copy)) || ...),
                            "some layers of a block are int8, and some are not");
      half_copies.clear();
    }
    const bool has_biases = biases.front().defined();
    for (const at::Tensor& bias : biases) {
      TORCH_INTERNAL_ASSERT(bias.defined() == has_biases, "some layers of a block have a bias, and some have not");
    }
    if (!has_biases) {
      biases.clear();
    }
  }
  std::vector<at::Tensor> weights, biases, half_copies;
};

struct LinearLayers {
  LinearLayers(const char* op,
               size_t count,
               at::TensorList the_weights,
               at::TensorList the_biases,
               at::TensorList the_half_copies,
               bool may_lack_biases = false)
      : weights(the_weights), biases(the_biases), half_copies(the_half_copies) {
    TORCH_CHECK_VALUE(weights.size() == count && (biases.size() == count || (biases.empty() && may_lack_biases)) &&
                          (half_copies.empty() || half_copies.size() == count),
                      "mezzo::", op, ": needs ", count, " weights and biases, and as many half copies or none, got ",
                      weights.size(), ", ", biases.size(), " and ", half_copies.size());
    TORCH_CHECK_VALUE(half_copies.empty() || !is_int8_weight(half_copies[0]) || has_int8_products(weights[0].device()),
                      "mezzo::", op, ": half copies are int8, and ", weights[0].device(),
                      " has no products of those: they are for CPUs with AVX2 or AVX-512");
    for (size_t i = 0; i < count; ++i) {
      const at::Tensor& bias = biases.empty() ? none : biases[i];
      TORCH_CHECK_VALUE(weights[i].dim() == 2 &&
                            (!bias.defined() || (bias.dim() == 1 && bias.size(0) == weights[i].size(0))) &&
                            (half_copies.empty() || is_copy_of(half_copies[i], weights[i])),
                        "mezzo::", op, ": weight ", i, " has sizes ", weights[i].sizes(), ", which its bias, ",
                        bias.defined() ? bias.sizes() : at::IntArrayRef(), ", or its half copy does not fit");
    }
  }
  LinearParams operator[](size_t i) const {
    return {weights[i], biases.empty() ? none : biases[i], half_copies.empty() ? at::Tensor() : half_copies[i]};
  }
  at::TensorList weights, biases, half_copies;
  at::Tensor none = {};
};

}  // namespace mezzo::encoder
