#include "mezzo/amp/cpu_half_compute.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_addmm_activation_cpu_dispatch.h>
#include <ATen/ops/_convolution_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_cpu_dispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_cpu_dispatch.h>
#include <ATen/ops/addbmm_cpu_dispatch.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/convolution_backward_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/mkldnn_rnn_layer_backward_cpu_dispatch.h>
#include <ATen/ops/mkldnn_rnn_layer_cpu_dispatch.h>
#include <ATen/ops/mm_cpu_dispatch.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <mutex>
#include <optional>
#include <tuple>

#include "amp/in_float32.h"

namespace mezzo {
namespace {

using namespace in_float32;

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

void implement_rnn_layers(torch::Library& library) {
  library.impl("mkldnn_rnn_layer", &RnnInFloat32<at::cpu::mkldnn_rnn_layer>::call);
  library.impl("mkldnn_rnn_layer_backward", &RnnInFloat32<at::cpu::mkldnn_rnn_layer_backward>::call);
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
    implement_rnn_layers(library);
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
