#include "encoder/cuda/cross_entropy.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "encoder/cuda/row_launchers.h"
#include "kernels/cuda/tensors.h"

namespace mezzo::encoder::MEZZO_CUDA {
namespace {

CrossEntropyArguments arguments_of(const at::Tensor& logits,
                                   const at::Tensor& targets,
                                   int64_t ignored,
                                   const CrossEntropy& of) {
  return {.logits = span_of(logits),
          .targets = targets.const_data_ptr<int64_t>(),
          .ignored = ignored,
          .largest = of.largest.mutable_data_ptr<float>(),
          .log_sum = of.log_sum.mutable_data_ptr<float>(),
          .losses = nullptr,
          .loss = nullptr,
          .grad = nullptr,
          .grad_logits = Span{},
          .rows = logits.size(0),
          .columns = logits.size(1)};
}

}  // namespace

CrossEntropy cross_entropy(const at::Tensor& logits, const at::Tensor& targets, int64_t ignored) {
  const OnDeviceOf device(logits);
  const auto options = logits.options().dtype(at::kFloat);
  const int64_t rows = logits.size(0);
  if (rows == 0) {
    return {at::zeros({}, options), at::empty({0}, options), at::empty({0}, options)};
  }
  CrossEntropy result{at::empty({}, options), at::empty({rows}, options), at::empty({rows}, options)};
  const auto losses = at::empty({rows}, options);
  auto arguments = arguments_of(logits, targets, ignored, result);
  arguments.losses = losses.mutable_data_ptr<float>();
  arguments.loss = result.loss.mutable_data_ptr<float>();
  cross_entropy(arguments, device.stream);
  return result;
}

at::Tensor cross_entropy_backward(const at::Tensor& grad,
                                  const CrossEntropy& forward,
                                  const at::Tensor& logits,
                                  const at::Tensor& targets,
                                  int64_t ignored) {
  const OnDeviceOf device(logits);
  auto result = at::empty_like(logits);
  if (logits.numel() > 0) {
    auto arguments = arguments_of(logits, targets, ignored, forward);
    arguments.grad = grad.const_data_ptr<float>();
    arguments.grad_logits = span_of(result);
    cross_entropy_backward(arguments, device.stream);
  }
  return result;
}

}  // namespace mezzo::encoder::MEZZO_CUDA
