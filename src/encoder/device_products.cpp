#include "encoder/device_products.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <c10/core/TensorOptions.h>

#include "kernels/dtypes.h"

namespace mezzo::encoder {
namespace {

/// Whether LibTorch has an operator for matrices as `a`: products, or sums of them, of another dtype than their
/// factors.
bool has_operator(const c10::OperatorHandle& op, const at::Tensor& a) {
  return op.hasKernelForDispatchKey(c10::computeDispatchKey(a.scalar_type(), a.layout(), a.device()));
}
bool has_wider_products(const at::Tensor& a) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "dtype");
  return has_operator(op, a);
}
bool has_wider_sums(const at::Tensor& a) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::addmm", "dtype_out");
  return a.dim() == 2 && has_operator(op, a);
}

bool widens(at::ScalarType dtype, const at::Tensor& a) { return dtype == at::kFloat && is_half(a.scalar_type()); }

/// cuBLAS writes the sums of half-precision factors as float32; factors of other dtypes are converted first.
at::Tensor product_as(at::ScalarType dtype, const at::Tensor& a, const at::Tensor& b) {
  const bool is_batch = a.dim() == 3;
  if (widens(dtype, a) && has_wider_products(a)) {
    return is_batch ? at::bmm(a, b, dtype) : at::mm(a, b, dtype);
  }
  const auto left = a.to(dtype), right = b.to(dtype);
  return is_batch ? at::bmm(left, right) : at::mm(left, right);
}

}  // namespace

at::Tensor device_product(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  return product_as(dtype, a, b);
}

void assign_device_product(const at::Tensor& output, const at::Tensor& a, const at::Tensor& b) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  auto to = output;
  if (output.scalar_type() == a.scalar_type()) {
    at::matmul_out(to, a, b);
  } else if (widens(output.scalar_type(), a) && has_wider_products(a)) {
    a.dim() == 3 ? at::bmm_out(to, a, b, output.scalar_type()) : at::mm_out(to, a, b, output.scalar_type());
  } else {
    to.copy_(product_as(output.scalar_type(), a, b));
  }
}

void add_device_product(const at::Tensor& total, const at::Tensor& a, const at::Tensor& b) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  auto sum = total;
  if (widens(total.scalar_type(), a) && has_wider_sums(a)) {
    at::addmm_out(sum, sum, a, b, total.scalar_type());
  } else if (total.scalar_type() != a.scalar_type()) {
    sum.add_(product_as(total.scalar_type(), a, b));
  } else if (a.dim() == 3) {
    sum.baddbmm_(a, b);
  } else {
    sum.addmm_(a, b);
  }
}

}  // namespace mezzo::encoder
