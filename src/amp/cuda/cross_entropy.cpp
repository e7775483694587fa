#include "amp/cuda/cross_entropy.h"

#include <ATen/core/Reduction.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <limits>

#include "amp/cuda/cross_entropy_launchers.h"
#include "kernels/cuda/tensors.h"

namespace mezzo::MEZZO_CUDA {
namespace {

float* floats_of(const at::Tensor& tensor) { return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr; }

CrossEntropyArguments arguments_of(const CrossEntropyOf& of, const CrossEntropy& result) {
  return {.logits = span_of(of.logits),
          .targets = of.target.const_data_ptr<int64_t>(),
          .ignored = of.ignore_index,
          .largest = floats_of(result.largest),
          .log_sum = floats_of(result.log_sum),
          .losses = nullptr,
          .total = nullptr,
          .count = floats_of(result.count),
          .grad = nullptr,
          .grad_is_of_rows = of.reduction == at::Reduction::None,
          .grad_logits = Span{},
          .rows = of.logits.size(0),
          .columns = of.logits.size(1)};
}

CrossEntropy forward(const CrossEntropyOf& of) {
  const OnDeviceOf device(of.logits);
  const auto options = of.logits.options().dtype(at::kFloat);
  const int64_t rows = of.logits.size(0);
  const bool is_mean = of.reduction == at::Reduction::Mean, is_of_rows = of.reduction == at::Reduction::None;
  const auto losses = at::empty({rows}, options);
  CrossEntropy result{is_of_rows ? losses : at::empty({}, options), at::empty({rows}, options),
                      at::empty({rows}, options), is_mean ? at::empty({}, options) : at::Tensor()};
  if (rows == 0) {
    if (!is_of_rows) {
      result.loss.fill_(is_mean ? std::numeric_limits<float>::quiet_NaN() : 0);
    }
    return result;
  }
  auto arguments = arguments_of(of, result);
  arguments.losses = floats_of(losses);
  arguments.total = is_of_rows ? nullptr : floats_of(result.loss);
  cross_entropy(arguments, device.stream);
  return result;
}

at::Tensor backward(const CrossEntropyOf& of, const CrossEntropy& result, const at::Tensor& grad) {
  const OnDeviceOf device(of.logits);
  auto grad_logits = at::empty_like(of.logits);
  if (of.logits.numel() > 0) {
    auto arguments = arguments_of(of, result);
    arguments.grad = grad.const_data_ptr<float>();
    arguments.grad_logits = span_of(grad_logits);
    cross_entropy_backward(arguments, device.stream);
  }
  return grad_logits;
}

}  // namespace

const CrossEntropyKernels kCrossEntropyKernels = {forward, backward};

}  // namespace mezzo::MEZZO_CUDA
