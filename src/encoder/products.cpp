#include "encoder/products.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <c10/core/TensorOptions.h>

#include "encoder/side_stream.h"
#include "kernels/dtypes.h"

namespace mezzo::encoder {
namespace {

/// Whether LibTorch has an operator for matrices as `a`: products, or sums of them, of another dtype than their
/// factors.
bool has_kernel(const c10::OperatorHandle& op, const at::Tensor& a) {
  return op.hasKernelForDispatchKey(c10::computeDispatchKey(a.scalar_type(), a.layout(), a.device()));
}
bool has_wider_products(const at::Tensor& a) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::mm", "dtype");
  return has_kernel(op, a);
}
bool has_wider_sums(const at::Tensor& a) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::addmm", "dtype_out");
  return a.dim() == 2 && has_kernel(op, a);
}

bool widens(at::ScalarType dtype, const at::Tensor& a) { return dtype == at::kFloat && is_half(a.scalar_type()); }

/// Of factors in half precision cuBLAS writes as float32 what it sums up so; others of another dtype are
/// converted first.
at::Tensor product_as(at::ScalarType dtype, const at::Tensor& a, const at::Tensor& b) {
  const bool is_batch = a.dim() == 3;
  if (widens(dtype, a) && has_wider_products(a)) {
    return is_batch ? at::bmm(a, b, dtype) : at::mm(a, b, dtype);
  }
  const auto left = a.to(dtype), right = b.to(dtype);
  return is_batch ? at::bmm(left, right) : at::mm(left, right);
}

/// Calls `body(output, a, b)` for the matrices of a batch, or for the only one.
template <class Body>
void for_matrices(const at::Tensor& output, const at::Tensor& a, const at::Tensor& b, const Body& body) {
  if (a.dim() != 3) {
    return body(output, a, b);
  }
  for (int64_t i = 0; i < a.size(0); ++i) {
    body(output[i], a[i], b[i]);
  }
}

}  // namespace

at::Tensor Products::add(const at::Tensor& a, const at::Tensor& b, std::optional<at::ScalarType> dtype) {
  if (a.is_cpu() && a.dim() == 3) {
    const auto output =
        at::empty({a.size(0), a.size(1), b.size(2)}, a.options().dtype(dtype.value_or(a.scalar_type())));
    assign(output, a, b);
    return output;
  }
  if (a.is_cpu()) {
    return on_cpu_.add(a, b, dtype);
  }
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  return product_as(dtype.value_or(a.scalar_type()), a, b);
}

void Products::assign(const at::Tensor& output, const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cpu()) {
    return for_matrices(output, a, b, [&](const auto&... each) { on_cpu_.assign(each...); });
  }
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

at::Tensor Products::add_aside(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype) {
  if (a.is_cpu()) {
    return add(a, b, dtype);
  }
  const auto output = at::empty({a.size(0), b.size(1)}, a.options().dtype(dtype));
  assign_aside(output, a, b);
  return output;
}

void Products::assign_aside(const at::Tensor& output, const at::Tensor& a, const at::Tensor& b) {
  SideStream::run({output, a, b}, [&] { assign(output, a, b); });
}

void Products::add_to(const at::Tensor& total, const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cpu()) {
    return for_matrices(total, a, b, [&](const auto&... each) { on_cpu_.add_to(each...); });
  }
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

void Products::compute() { on_cpu_.compute(); }

}  // namespace mezzo::encoder
