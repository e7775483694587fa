#include "encoder/side_by_side.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <numeric>

namespace mezzo::encoder {
namespace {

/// Whether `next` begins where `tensor` ends.
bool is_followed_by(const at::Tensor& tensor, const at::Tensor& next) {
  return tensor.is_contiguous() && next.is_contiguous() && tensor.scalar_type() == next.scalar_type() &&
         tensor.has_storage() && next.has_storage() && tensor.storage().is_alias_of(next.storage()) &&
         next.storage_offset() == tensor.storage_offset() + tensor.numel();
}

int64_t elements(at::TensorList tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), int64_t{0},
                         [](int64_t sum, const at::Tensor& tensor) { return sum + tensor.numel(); });
}

}  // namespace

at::Tensor side_by_side(at::TensorList tensors) {
  const at::Tensor& first = tensors.front();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& each = tensors[i];
    if (each.dim() == 0 || each.dim() != first.dim() || each.sizes().slice(1) != first.sizes().slice(1) ||
        (i > 0 && !is_followed_by(tensors[i - 1], each))) {
      return {};
    }
  }
  auto sizes = first.sizes().vec();
  sizes[0] = std::accumulate(tensors.begin(), tensors.end(), int64_t{0},
                             [](int64_t sum, const at::Tensor& tensor) { return sum + tensor.size(0); });
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  return first.as_strided({elements(tensors)}, {1}).view(sizes);
}

std::vector<at::Tensor> split_rows(const at::Tensor& tensor, int64_t count) {
  const int64_t rows = tensor.size(0) / count;
  TORCH_INTERNAL_ASSERT(tensor.is_contiguous() && rows * count == tensor.size(0));
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  std::vector<at::Tensor> parts;
  for (int64_t i = 0; i < count; ++i) {
    parts.push_back(tensor.narrow(0, i * rows, rows));
  }
  return parts;
}

}  // namespace mezzo::encoder
