#include "encoder/side_by_side.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <utility>

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

std::vector<at::Tensor> convert_together(const std::vector<at::Tensor>& tensors,
                                         const std::function<at::Tensor(const at::Tensor& tensor)>& convert) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  std::vector<size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) {
    return std::pair(tensors[i].has_storage() ? tensors[i].storage().unsafeGetStorageImpl() : nullptr,
                     tensors[i].has_storage() ? tensors[i].storage_offset() : 0);
  });
  std::vector<at::Tensor> converted(tensors.size());
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    std::vector<at::Tensor> run{tensors[order[begin]]};
    for (end = begin + 1; end < order.size() && is_followed_by(run.back(), tensors[order[end]]); ++end) {
      run.push_back(tensors[order[end]]);
    }
    if (run.size() == 1) {
      converted[order[begin]] = convert(run.front());
      continue;
    }
    const auto whole = convert(run.front().as_strided({elements(run)}, {1}));
    int64_t offset = 0;
    for (size_t i = begin; i < end; ++i) {
      const at::Tensor& each = tensors[order[i]];
      converted[order[i]] = whole.narrow(0, offset, each.numel()).view(each.sizes());
      offset += each.numel();
    }
  }
  return converted;
}

}  // namespace mezzo::encoder
