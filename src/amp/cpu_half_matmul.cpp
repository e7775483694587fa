#include "mezzo/amp/cpu_half_matmul.h"

#include <ATen/Functions.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <mutex>

namespace mezzo {
namespace {

bool has_slow_matmul(at::ScalarType dtype) {
  static const bool bf16_is_slow = !__builtin_cpu_supports("avx512bf16");
  return dtype == at::kHalf || (dtype == at::kBFloat16 && bf16_is_slow);
}

at::Tensor widened(const at::Tensor& x) { return x.to(at::kFloat); }

at::Tensor mm(const at::Tensor& a, const at::Tensor& b) {
  const auto dtype = a.scalar_type();
  if (!has_slow_matmul(dtype) || b.scalar_type() != dtype) {
    return at::cpu::mm(a, b);
  }
  return at::cpu::mm(widened(a), widened(b)).to(dtype);
}

at::Tensor bmm(const at::Tensor& a, const at::Tensor& b) {
  const auto dtype = a.scalar_type();
  if (!has_slow_matmul(dtype) || b.scalar_type() != dtype) {
    return at::cpu::bmm(a, b);
  }
  return at::cpu::bmm(widened(a), widened(b)).to(dtype);
}

at::Tensor addmm(
    const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta, const at::Scalar& alpha) {
  const auto dtype = a.scalar_type();
  if (!has_slow_matmul(dtype) || b.scalar_type() != dtype || sum.scalar_type() != dtype) {
    return at::cpu::addmm(sum, a, b, beta, alpha);
  }
  return at::cpu::addmm(widened(sum), widened(a), widened(b), beta, alpha).to(dtype);
}

at::Tensor baddbmm(
    const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta, const at::Scalar& alpha) {
  const auto dtype = a.scalar_type();
  if (!has_slow_matmul(dtype) || b.scalar_type() != dtype || sum.scalar_type() != dtype) {
    return at::cpu::baddbmm(sum, a, b, beta, alpha);
  }
  return at::cpu::baddbmm(widened(sum), widened(a), widened(b), beta, alpha).to(dtype);
}

/// The dispatcher warns once a process that a kernel is overridden, which is what we are here for.
struct Silence : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

struct CpuHalfMatmul::Registration {
  Registration() : library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__) {
    Silence silence;
    const c10::WarningUtils::WarningHandlerGuard guard(&silence);
    library.impl("mm", TORCH_FN(mm));
    library.impl("bmm", TORCH_FN(bmm));
    library.impl("addmm", TORCH_FN(addmm));
    library.impl("baddbmm", TORCH_FN(baddbmm));
  }
  torch::Library library;
};

CpuHalfMatmul::CpuHalfMatmul() {
  static std::mutex mutex;
  static std::weak_ptr<Registration> current;  // nested objects share one
  const std::lock_guard lock(mutex);
  registration_ = current.lock();
  if (!registration_) {
    registration_ = std::make_shared<Registration>();
    current = registration_;
  }
}

CpuHalfMatmul::~CpuHalfMatmul() = default;

}  // namespace mezzo
