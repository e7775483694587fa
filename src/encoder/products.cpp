#include "encoder/products.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <c10/core/TensorOptions.h>

#include "kernels/dtypes.h"

namespace mezzo::encoder {
namespace {

/// Whether products there can be of another dtype than their factors.
bool has_wider_products(const at::Tensor& a) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "dtype");
  return op.hasKernelForDispatchKey(c10::computeDispatchKey(a.scalar_type(), a.layout(), a.device()));
}

/// Of a dtype that is not the factors': of those in half precision cuBLAS writes what it sums up in
/// float32; others are converted first.
at::Tensor product_as(at::ScalarType dtype, const at::Tensor& a, const at::Tensor& b) {
  if (dtype == at::kFloat && is_half(a.scalar_type()) && has_wider_products(a)) {
    return a.dim() == 3 ? at::bmm(a, b, dtype) : at::mm(a, b, dtype);
  }
  return at::matmul(a.to(dtype), b.to(dtype));
}

}  // namespace

at::Tensor Products::add(const at::Tensor& a, const at::Tensor& b, std::optional<at::ScalarType> dtype) {
  if (a.is_cpu()) {
    return on_cpu_.add(a, b, dtype);
  }
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  return dtype.value_or(a.scalar_type()) == a.scalar_type() ? at::mm(a, b) : product_as(*dtype, a, b);
}

void Products::assign(const at::Tensor& output, const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cpu()) {
    const bool is_batch = output.dim() == 3;
    for (int64_t i = 0; is_batch && i < output.size(0); ++i) {
      on_cpu_.assign(output[i], a[i], b[i]);
    }
    return is_batch ? void() : on_cpu_.assign(output, a, b);
  }
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  auto to = output;
  if (output.scalar_type() == a.scalar_type()) {
    at::matmul_out(to, a, b);
  } else {
    to.copy_(product_as(output.scalar_type(), a, b));
  }
}

void Products::add_to(const at::Tensor& total, const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cpu()) {
    return on_cpu_.add_to(total, a, b);
  }
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  auto sum = total;
  if (total.scalar_type() == a.scalar_type()) {
    sum.addmm_(a, b);
  } else {
    sum.add_(product_as(total.scalar_type(), a, b));
  }
}

void Products::compute() { on_cpu_.compute(); }

}  // namespace mezzo::encoder
