#include "amp/tensor_caster.h"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include "amp/policy_region.h"
#include "amp/policy_thread.h"
#include "kernels/dtypes.h"
#include "mezzo/amp/cast_log.h"

namespace mezzo {

TensorCaster::TensorCaster(c10::DeviceType device_type, const std::string& op, CastPolicy policy, CastLog* log)
    : device_type_(device_type),
      op_(op),
      policy_(policy),
      log_(log),
      low_(at::autocast::get_autocast_dtype(device_type)) {}

bool TensorCaster::is_eligible(const at::Tensor& tensor) const {
  return tensor.defined() && tensor.scalar_type() != at::kDouble &&
         at::autocast::is_autocast_eligible(tensor, device_type_);
}

at::Tensor TensorCaster::convert(const at::Tensor& tensor, at::ScalarType to) const {
  if (!is_eligible(tensor) || tensor.scalar_type() == to) {
    return tensor;
  }
  auto result = tensor.to(to);
  log(tensor.scalar_type(), result, /*from_cache=*/false);
  return result;
}

at::Tensor TensorCaster::cast(const at::Tensor& tensor, at::ScalarType to) const {
  if (!is_eligible(tensor) || tensor.scalar_type() == to) {
    return tensor;
  }
  if (!PolicyRegion::has_policy(device_type_)) {
    return cast_as_pytorch(tensor, to);
  }
  const bool keep = to == low_ && at::autocast::is_autocast_cache_enabled() && !c10::InferenceMode::is_enabled() &&
                    CastCache::takes(tensor);
  if (!keep) {
    return convert(tensor, to);
  }
  auto& cache = PolicyThread::current()->cache;
  if (auto kept = cache.find(tensor, to); kept.defined()) {
    log(tensor.scalar_type(), kept, /*from_cache=*/true);
    return kept;
  }
  const c10::AutoGradMode differentiable(true);  // also for later uses, should gradients be off just now
  auto result = convert(tensor, to);
  cache.keep(tensor, result);
  return result;
}

/// By PyTorch's own cache, whose casts of parameters the thread's cache remembers for the log.
at::Tensor TensorCaster::cast_as_pytorch(const at::Tensor& tensor, at::ScalarType to) const {
  auto result = at::autocast::cached_cast(to, tensor, device_type_);
  if (log_ != nullptr) {
    auto& cache = PolicyThread::current()->cache;
    log(tensor.scalar_type(), result, /*from_cache=*/cache.has(tensor, result));
    if (at::autocast::is_autocast_cache_enabled() && CastCache::takes(tensor)) {
      cache.keep(tensor, result);
    }
  }
  return result;
}

at::ScalarType TensorCaster::promoted(at::ScalarType so_far, const at::Tensor& tensor) const {
  if (!is_eligible(tensor) || so_far == at::kFloat) {
    return so_far;
  }
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK(dtype == at::kFloat || dtype == low_, "autocast: ", op_, " got a ", dtype_name(dtype),
              " tensor in a region of ", dtype_name(low_),
              ", and the two have no common dtype but float32. Cast one of them, or set this op's policy to fp32.");
  return dtype;
}

void TensorCaster::refuse() const {
  TORCH_CHECK(false, "autocast: ", op_, " is banned by the op policy in force. Use its form that is safe in ",
              dtype_name(low_),
              " (for binary_cross_entropy: binary_cross_entropy_with_logits), or run it on float32 "
              "tensors with autocast disabled.");
}

void TensorCaster::log(at::ScalarType from, const at::Tensor& result, bool from_cache) const {
  if (log_ != nullptr) {
    log_->record(op_, policy_, from, result.scalar_type(), static_cast<int64_t>(result.nbytes()), from_cache);
  }
}

void TensorCaster::log_conversion(const at::Tensor& tensor) const {
  if (log_ != nullptr && tensor.scalar_type() != at::kFloat) {
    log_->record(op_, policy_, tensor.scalar_type(), at::kFloat, /*bytes=*/0, /*from_cache=*/false);
  }
}

}  // namespace mezzo
