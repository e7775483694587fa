#include "encoder/relative_positions.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace mezzo::encoder {
namespace {

/// Kernels read rows unchecked.
void check_rows(const at::Tensor& rows, int64_t num_rows) {
  const int64_t *const first = rows.const_data_ptr<int64_t>(), *const end = first + rows.size(0);
  TORCH_CHECK_VALUE(std::is_sorted(first, end) && *first >= 0 && *(end - 1) < num_rows,
                    "mezzo: rows of relative positions must be at least 0 and below ", num_rows,
                    ", and never decrease with the distance");
}

}  // namespace

at::Tensor RelativePositions::rows_for(int64_t length) const {
  return rows.narrow(0, (rows.size(0) + 1) / 2 - length, 2 * length - 1);
}

RelativePositions RelativePositions::checked(const SequenceLayout& layout,
                                             const at::Device& device,
                                             int64_t hidden) const {
  if (!defined()) {
    return {};
  }
  for (const at::Tensor* table : {&key, &query}) {
    TORCH_CHECK_VALUE(
        !table->defined() || (table->dim() == 2 && table->size(0) == num_rows() && table->size(1) == hidden &&
                              table->device() == device && table->is_floating_point()),
        "mezzo: keys and queries of relative positions must be matrices of floating-point numbers, of ", num_rows(),
        " rows and ", hidden, " columns on ", device, ", got ", table->scalar_type(), " ", table->sizes(), " on ",
        table->device());
  }
  TORCH_CHECK_VALUE(rows.defined() && rows.dim() == 1 && rows.scalar_type() == at::kLong && rows.device() == device &&
                        rows.size(0) % 2 == 1 && rows.size(0) >= 2 * layout.longest() - 1,
                    "mezzo: relative positions need rows, a vector of int64 on ", device,
                    " for each distance of up to ", layout.longest(), " tokens, got ",
                    rows.defined() ? rows.sizes() : at::IntArrayRef());
  RelativePositions dense{key, query, rows.contiguous()};
  if (device.is_cpu()) {
    check_rows(dense.rows, num_rows());
  }
  return dense;
}

}  // namespace mezzo::encoder
