#include "memory/converted.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <map>

namespace mezzo {

std::vector<at::Tensor> converted(const std::vector<at::Tensor>& tensors, c10::ScalarType dtype) {
  const at::AutoDispatchBelowADInplaceOrView without_autograd;
  struct Shared {
    int64_t elements = 0;  // of all tensors in the storage
    at::Tensor result = {};
  };
  std::map<const void*, Shared> storages;
  const auto is_part = [](const at::Tensor& tensor) {
    return tensor.has_storage() && tensor.is_non_overlapping_and_dense();
  };
  for (const at::Tensor& tensor : tensors) {
    if (is_part(tensor)) storages[tensor.storage().unsafeGetStorageImpl()].elements += tensor.numel();
  }
  std::vector<at::Tensor> results;
  for (const at::Tensor& tensor : tensors) {
    const int64_t size = is_part(tensor) ? static_cast<int64_t>(tensor.storage().nbytes()) / tensor.element_size() : 0;
    Shared* const shared = size > 0 ? &storages.at(tensor.storage().unsafeGetStorageImpl()) : nullptr;
    if (shared == nullptr || shared->elements < size) {
      results.push_back(tensor.to(dtype));
      continue;
    }
    if (!shared->result.defined()) shared->result = tensor.as_strided({size}, {1}, 0).to(dtype);
    results.push_back(shared->result.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset()));
  }
  return results;
}

}  // namespace mezzo
