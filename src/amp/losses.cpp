#include "mezzo/amp/losses.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/binary_cross_entropy.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/log.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/enum.h>

#include <limits>

#include "amp/cross_entropy.h"

namespace mezzo {
namespace {

/// Keeps every autocast key out of the enclosing scope: what LibTorch's
/// own fp32 casting kernels do.
struct NoAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

at::ScalarType compute_dtype(const char* who, const char* what, const at::Tensor& input) {
  TORCH_CHECK_VALUE(input.defined() && input.is_floating_point(), who, ": ", what, " must be a floating tensor, got ",
                    input.defined() ? toString(input.scalar_type()) : "an undefined tensor", ".");
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor to_if_defined(const at::Tensor& tensor, at::ScalarType dtype) {
  return tensor.defined() ? tensor.to(dtype) : tensor;
}

}  // namespace

at::Tensor binary_cross_entropy(const at::Tensor& probabilities,
                                const at::Tensor& target,
                                torch::nn::functional::BinaryCrossEntropyFuncOptions options) {
  const NoAutocast no_autocast;
  const auto dtype = compute_dtype("binary_cross_entropy", "probabilities", probabilities);
  TORCH_CHECK_VALUE(target.defined() && target.sizes() == probabilities.sizes(),
                    "binary_cross_entropy: target must have the shape of the probabilities, ", probabilities.sizes(),
                    ", got ", target.defined() ? target.sizes() : at::IntArrayRef(),
                    ". Reshape or expand one of them.");
  return at::binary_cross_entropy(probabilities.to(dtype), target.to(dtype), to_if_defined(options.weight(), dtype),
                                  torch::enumtype::reduction_get_enum(options.reduction()));
}

at::Tensor clamped_log(const at::Tensor& x, double floor) {
  const NoAutocast no_autocast;
  const auto dtype = compute_dtype("clamped_log", "x", x);
  TORCH_CHECK_VALUE(floor >= std::numeric_limits<float>::min() && floor <= std::numeric_limits<float>::max(),
                    "clamped_log: floor must be between ", std::numeric_limits<float>::min(), " and ",
                    std::numeric_limits<float>::max(), ", got ", floor, ".");
  return at::log(at::clamp_min(x.to(dtype), floor));
}

at::Tensor cross_entropy(const at::Tensor& logits,
                         const at::Tensor& target,
                         torch::nn::functional::CrossEntropyFuncOptions options) {
  const NoAutocast no_autocast;
  const auto dtype = compute_dtype("cross_entropy", "logits", logits);
  const bool gives_probabilities = target.defined() && target.is_floating_point();
  const auto reduction = torch::enumtype::reduction_get_enum(options.reduction());
  if (target.defined() && !gives_probabilities && !options.weight().defined() && options.label_smoothing() == 0) {
    return cross_entropy_of_labels(logits, target, reduction, options.ignore_index());
  }
  return at::cross_entropy_loss(logits.to(dtype), gives_probabilities ? target.to(dtype) : target,
                                to_if_defined(options.weight(), dtype), reduction, options.ignore_index(),
                                options.label_smoothing());
}

}  // namespace mezzo
