#include "amp/traced_tensor.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/where.h>

#include <cmath>
#include <limits>

namespace mezzo {
namespace {

void visit_tensor(const at::Tensor& tensor, const std::function<void(const at::Tensor&)>& visit) {
  if (!tensor.defined() || tensor.is_meta() || (tensor.layout() != at::kStrided && !tensor.is_sparse())) {
    return;
  }
  const auto dtype = tensor.scalar_type();
  const bool has_inf_or_nan = at::isComplexType(dtype) || (at::isFloatingType(dtype) && dtype != at::kFloat4_e2m1fn_x2);
  if (!has_inf_or_nan) {
    return;
  }
  auto values = tensor.is_sparse() ? tensor._values() : tensor;
  if (values.numel() > 0) {
    visit(values.is_complex() ? at::view_as_real(values.resolve_conj()) : values);
  }
}

/// For ops that know no float8: float32 holds all of their values.
at::Tensor readable(const at::Tensor& values) {
  return c10::isFloat8Type(values.scalar_type()) ? values.to(at::kFloat) : values;
}

}  // namespace

void visit_values(const at::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) {
    visit_tensor(value.toTensor(), visit);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList().vec()) {
      visit_tensor(tensor, visit);
    }
  } else if (value.isList()) {  // of optional tensors
    for (const at::IValue& element : value.toListRef()) {
      if (element.isTensor()) {
        visit_tensor(element.toTensor(), visit);
      }
    }
  }
}

TracedTensor describe(std::string name, const at::Tensor& tensor) {
  TracedTensor traced{.name = std::move(name), .shape = tensor.sizes().vec(), .dtype = tensor.scalar_type()};
  const auto values = readable(tensor);
  const auto [least, greatest] = at::aminmax(values);  // spreads NaN to both
  const auto range = at::stack({least, greatest}).cpu().to(at::kDouble);
  traced.min = range.const_data_ptr<double>()[0];
  traced.max = range.const_data_ptr<double>()[1];
  if (std::isfinite(traced.min) && std::isfinite(traced.max)) {
    return traced;
  }
  const auto finite = values.isfinite();
  traced.num_nan = values.isnan().sum().item<int64_t>();
  traced.num_inf = values.isposinf().sum().item<int64_t>();
  traced.num_minus_inf = values.isneginf().sum().item<int64_t>();
  traced.min = traced.max = std::numeric_limits<double>::quiet_NaN();
  if (finite.any().item<bool>()) {
    traced.min = at::where(finite, values, std::numeric_limits<double>::infinity()).min().item<double>();
    traced.max = at::where(finite, values, -std::numeric_limits<double>::infinity()).max().item<double>();
  }
  return traced;
}

bool is_non_finite_number(const at::IValue& value) {
  if (value.isDouble()) {
    return !std::isfinite(value.toDouble());
  }
  if (value.isComplexDouble()) {
    return !std::isfinite(value.toComplexDouble().real()) || !std::isfinite(value.toComplexDouble().imag());
  }
  if (value.isDoubleList()) {
    for (const double number : value.toDoubleVector()) {
      if (!std::isfinite(number)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace mezzo
