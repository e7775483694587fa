#include "encoder/products.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <limits>

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

/// BLAS counts rows, columns and the distance of rows in 32 bits.
bool is_countable(const at::Tensor& matrix) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  const auto is_small = [&](int64_t dim) {
    return matrix.size(dim) <= kMost && (matrix.size(dim) <= 1 || matrix.stride(dim) <= kMost);
  };
  return is_small(-1) && is_small(-2);
}

void check_sizes(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK_VALUE(is_countable(a) && is_countable(b), "mezzo: a matrix product of ", a.sizes(), " and ", b.sizes(),
                    " has 2^31 rows or columns, or more; use a smaller batch");
}

}  // namespace

at::Tensor Products::add(const at::Tensor& a, const at::Tensor& b, std::optional<at::ScalarType> dtype) {
  check_sizes(a, b);
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
  check_sizes(a, b);
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
  check_sizes(a, b);
  if (a.is_cpu()) {
    return for_matrices(total, a, b, [&](const auto&... each) { on_cpu_.add_to(each...); });
  }
  add_device_product(total, a, b);
}

void Products::compute() { on_cpu_.compute(); }

}  // namespace mezzo::encoder
