#include "encoder/products.h"

#include <ATen/ops/empty.h>

#include "encoder/device_products.h"
#include "memory/side_stream.h"

namespace mezzo::encoder {
namespace {

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
  return device_product(a, b, dtype.value_or(a.scalar_type()));
}

void Products::assign(const at::Tensor& output, const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cpu()) {
    return for_matrices(output, a, b, [&](const auto&... each) { on_cpu_.assign(each...); });
  }
  assign_device_product(output, a, b);
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
  add_device_product(total, a, b);
}

void Products::compute() { on_cpu_.compute(); }

}  // namespace mezzo::encoder
