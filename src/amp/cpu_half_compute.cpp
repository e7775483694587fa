#include "mezzo/amp/cpu_half_compute.h"

#include <ATen/native/Resize.h>
#include <ATen/ops/_addmm_activation_cpu_dispatch.h>
#include <ATen/ops/_convolution_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_cpu_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_cpu_dispatch.h>
#include <ATen/ops/addbmm_cpu_dispatch.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <tuple>

namespace mezzo {
namespace {

using at::Tensor;

bool is_slow(at::ScalarType dtype) {
#if defined(__x86_64__)
  static const bool fp16_is_slow = !__builtin_cpu_supports("avx512fp16");
  static const bool bf16_is_slow = !__builtin_cpu_supports("avx512bf16");
  return (dtype == at::kHalf && fp16_is_slow) || (dtype == at::kBFloat16 && bf16_is_slow);
#else
  (void)dtype;
  return false;
#endif
}

/// The one slow dtype of the arguments that are tensors; nothing where they differ, which is the built-in kernel's
/// error to report.
template <class... Args>
std::optional<at::ScalarType> slow_dtype(const Args&... args) {
  std::optional<at::ScalarType> dtype;
  bool same = true;
  const auto look = [&]<class Arg>(const Arg& arg) {
    if constexpr (std::is_same_v<Arg, Tensor>) {
      dtype = dtype.value_or(arg.scalar_type());
      same &= arg.scalar_type() == *dtype;
    } else if constexpr (std::is_same_v<Arg, std::optional<Tensor>>) {
      same &= !arg.has_value() || !arg->defined() || arg->scalar_type() == dtype;
    }
  };
  (look(args), ...);
  return same && is_slow(*dtype) ? dtype : std::nullopt;
}

/// In float32. What is expanded stays so, and is converted once.
Tensor widened(const Tensor& x) {
  auto stored = x;
  for (int64_t dim = 0; dim < x.dim(); ++dim) {
    if (x.stride(dim) == 0 && x.size(dim) > 1) {
      stored = stored.narrow(dim, 0, 1);
    }
  }
  return stored.to(at::kFloat).expand(x.sizes());
}

std::optional<Tensor> widened(const std::optional<Tensor>& x) {
  return x && x->defined() ? std::optional(widened(*x)) : x;
}

template <class Arg>
const Arg& widened(const Arg& not_a_tensor) {
  return not_a_tensor;
}

Tensor rounded(const Tensor& x, at::ScalarType dtype) { return x.defined() ? x.to(dtype) : x; }

std::tuple<Tensor, Tensor, Tensor> rounded(const std::tuple<Tensor, Tensor, Tensor>& x, at::ScalarType dtype) {
  const auto& [first, second, third] = x;
  return {rounded(first, dtype), rounded(second, dtype), rounded(third, dtype)};
}

/// `kOp`, computed in float32 where its tensors are of a slow dtype.
template <auto kOp>
struct InFloat32;
template <class Result, class... Args, Result (*kOp)(Args...)>
struct InFloat32<kOp> {
  static Result call(Args... args) {
    const auto dtype = slow_dtype(args...);
    if (!dtype) {
      return kOp(args...);
    }
    const auto result = kOp(widened(args)...);  // the copies end here, before there is one more
    return rounded(result, *dtype);
  }
};

/// Its `out=` form; `kBuiltIn` is the one to fall back to.
template <auto kOp, auto kBuiltIn>
struct OutInFloat32;
template <class... Args, Tensor (*kOp)(Args...), Tensor& (*kBuiltIn)(Args..., Tensor&)>
struct OutInFloat32<kOp, kBuiltIn> {
  static Tensor& call(Args... args, Tensor& out) {
    if (!slow_dtype(args..., out)) {
      return kBuiltIn(args..., out);
    }
    const auto result = kOp(widened(args)...);
    at::native::resize_output(out, result.sizes());
    return out.copy_(result);
  }
};

/// Its in-place form.
template <auto kOp, auto kBuiltIn>
struct InPlaceInFloat32;
template <class... Args, Tensor (*kOp)(const Tensor&, Args...), Tensor& (*kBuiltIn)(Tensor&, Args...)>
struct InPlaceInFloat32<kOp, kBuiltIn> {
  static Tensor& call(Tensor& self, Args... args) {
    if (!slow_dtype(self, args...)) {
      return kBuiltIn(self, args...);
    }
    const auto result = kOp(widened(self), widened(args)...);
    // One that would have to grow is an error of the built-in kernel's.
    return result.sizes() == self.sizes() ? self.copy_(result) : kBuiltIn(self, args...);
  }
};

/// The log-sum-exp, for backward, is float32 in LibTorch's half kernels too.
std::tuple<Tensor, Tensor> attention(const Tensor& query,
                                     const Tensor& key,
                                     const Tensor& value,
                                     double dropout_p,
                                     bool is_causal,
                                     const std::optional<Tensor>& mask,
                                     std::optional<double> scale) {
  constexpr auto built_in = at::cpu::_scaled_dot_product_flash_attention_for_cpu;
  const auto dtype = slow_dtype(query, key, value);
  if (!dtype) {
    return built_in(query, key, value, dropout_p, is_causal, mask, scale);
  }
  auto [output, log_sum_exp] =
      built_in(widened(query), widened(key), widened(value), dropout_p, is_causal, widened(mask), scale);
  return {rounded(output, *dtype), log_sum_exp};
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(const Tensor& grad,
                                                      const Tensor& query,
                                                      const Tensor& key,
                                                      const Tensor& value,
                                                      const Tensor& output,
                                                      const Tensor& log_sum_exp,
                                                      double dropout_p,
                                                      bool is_causal,
                                                      const std::optional<Tensor>& mask,
                                                      std::optional<double> scale) {
  constexpr auto built_in = at::cpu::_scaled_dot_product_flash_attention_for_cpu_backward;
  const auto dtype = slow_dtype(grad, query, key, value, output);
  if (!dtype) {
    return built_in(grad, query, key, value, output, log_sum_exp, dropout_p, is_causal, mask, scale);
  }
  return rounded(built_in(widened(grad), widened(query), widened(key), widened(value), widened(output), log_sum_exp,
                          dropout_p, is_causal, widened(mask), scale),
                 *dtype);
}

void implement_products(torch::Library& library) {
  using namespace at::cpu;
  library.impl("mm", &InFloat32<mm>::call);
  library.impl("mm.out", &OutInFloat32<mm, mm_outf>::call);
  library.impl("bmm", &InFloat32<bmm>::call);
  library.impl("bmm.out", &OutInFloat32<bmm, bmm_outf>::call);
  library.impl("addmm", &InFloat32<addmm>::call);
  library.impl("addmm.out", &OutInFloat32<addmm, addmm_outf>::call);
  library.impl("addmm_", &InPlaceInFloat32<addmm, addmm_>::call);
  library.impl("baddbmm", &InFloat32<baddbmm>::call);
  library.impl("baddbmm.out", &OutInFloat32<baddbmm, baddbmm_outf>::call);
  library.impl("baddbmm_", &InPlaceInFloat32<baddbmm, baddbmm_>::call);
  library.impl("addbmm", &InFloat32<addbmm>::call);
  library.impl("addbmm.out", &OutInFloat32<addbmm, addbmm_outf>::call);
  library.impl("addbmm_", &InPlaceInFloat32<addbmm, addbmm_>::call);
  library.impl("_addmm_activation", &InFloat32<_addmm_activation>::call);
  library.impl("_addmm_activation.out", &OutInFloat32<_addmm_activation, _addmm_activation_outf>::call);
}

/// Every convolution passes through these two; their own derivatives are made of them.
void implement_convolutions(torch::Library& library) {
  library.impl("_convolution", &InFloat32<at::compositeexplicitautograd::_convolution>::call);
  library.impl("convolution_backward", &InFloat32<at::compositeexplicitautograd::convolution_backward>::call);
}

void implement_attention(torch::Library& library) {
  library.impl("_scaled_dot_product_flash_attention_for_cpu", &attention);
  library.impl("_scaled_dot_product_flash_attention_for_cpu_backward", &attention_backward);
}

/// The dispatcher warns once a process that a kernel is overridden, which is what we are here for.
struct Silence : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

}  // namespace

struct CpuHalfCompute::Registration {
  Registration() : library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__) {
    Silence silence;
    const c10::WarningUtils::WarningHandlerGuard guard(&silence);
    implement_products(library);
    implement_convolutions(library);
    implement_attention(library);
  }
  torch::Library library;
};

CpuHalfCompute::CpuHalfCompute() {
  static std::mutex mutex;
  static std::weak_ptr<Registration> current;  // nested objects share one
  const std::lock_guard lock(mutex);
  registration_ = current.lock();
  if (!registration_) {
    registration_ = std::make_shared<Registration>();
    current = registration_;
  }
}

CpuHalfCompute::~CpuHalfCompute() = default;

}  // namespace mezzo
