#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
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

/// Kernels take elements as they lie in memory.
inline at::Tensor dense(const at::Tensor& tensor) { return tensor.defined() ? tensor.contiguous() : tensor; }

/// Row numbers and ids go with the rows.
inline void check_one_a_row(const char* op, const at::Tensor& numbers, int64_t rows) {
  TORCH_CHECK_VALUE(!numbers.defined() || (numbers.dim() == 1 && numbers.size(0) == rows), "mezzo::", op, ": ", rows,
                    " rows need as many ids, positions, types or row numbers, got ", numbers.sizes());
}

/// @param may_lack  whether the norm may lack its bias, or its weight as well
inline void check_norm(
    const char* op, const at::Tensor& rows, const at::Tensor& weight, const at::Tensor& bias, bool may_lack = false) {
  const auto sizes = [](const at::Tensor& vector) { return vector.defined() ? vector.sizes() : at::IntArrayRef(); };
  const auto fits = [&](const at::Tensor& vector) {
    return vector.defined() ? vector.dim() == 1 && vector.size(0) == rows.size(1) : may_lack;
  };
  TORCH_CHECK_VALUE(rows.dim() == 2 && fits(weight) && fits(bias) && (weight.defined() || !bias.defined()),
                    "mezzo::", op, ": a layer norm of rows ", rows.sizes(), " cannot have a weight ", sizes(weight),
                    " and a bias ", sizes(bias));
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
inline bool has_lora(const std::vector<LinearParams>& layers) {
  return std::any_of(layers.begin(), layers.end(), [](const LinearParams& layer) { return layer.lora.has_value(); });
}

/// The linear layers of a block, as its operator takes them. All layers have a bias, or none has. The operator gets
/// half copies, which may be int8 weights, if all layers have one: layers with LoRA factors have none.
struct LinearLists {
  explicit LinearLists(const std::vector<LinearParams>& layers) {
    bool has_copies = true, has_int8 = false;
    const bool has_biases = layers.front().bias.defined();
    for (const LinearParams& layer : layers) {
      TORCH_INTERNAL_ASSERT(layer.bias.defined() == has_biases,
                            "some layers of a block have a bias, and some have not");
      weights.push_back(layer.weight);
      biases.push_back(layer.bias);
      half_copies.push_back(layer.half_copy);
      has_copies = has_copies && layer.half_copy.defined();
      has_int8 = has_int8 || (layer.half_copy.defined() && is_int8_weight(layer.half_copy));
    }
    if (!has_copies) {
      TORCH_INTERNAL_ASSERT(!has_int8, "some layers of a block are int8, and some are not");
      half_copies.clear();
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
               bool may_lack_biases)
      : weights(the_weights), biases(the_biases), half_copies(the_half_copies) {
    TORCH_CHECK_VALUE(weights.size() == count && (biases.size() == count || (biases.empty() && may_lack_biases)) &&
                          (half_copies.empty() || half_copies.size() == count),
                      "mezzo::", op, ": needs ", count, " weights, and as many biases and half copies or none, got ",
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
