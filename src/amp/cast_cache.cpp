#include "amp/cast_cache.h"

namespace mezzo {

bool CastCache::takes(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat && tensor.requires_grad() && tensor.is_leaf() && !tensor.is_view() &&
         !tensor.is_inference();
}

at::Tensor CastCache::find(const at::Tensor& tensor, c10::ScalarType dtype) const {
  const auto found = entries_.find({tensor.unsafeGetTensorImpl(), dtype});
  if (found == entries_.end()) {
    return {};
  }
  const Entry& entry = found->second;
  const bool is_good =
      entry.version == tensor._version() && entry.data == tensor.const_data_ptr() && entry.cast.scalar_type() == dtype;
  return is_good ? entry.cast : at::Tensor();
}

bool CastCache::has(const at::Tensor& tensor, const at::Tensor& cast) const {
  const auto found = entries_.find({tensor.unsafeGetTensorImpl(), cast.scalar_type()});
  return found != entries_.end() && found->second.cast.is_same(cast);
}

void CastCache::keep(const at::Tensor& tensor, const at::Tensor& cast) {
  entries_.insert_or_assign({tensor.unsafeGetTensorImpl(), cast.scalar_type()},
                            Entry{c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), tensor._version(),
                                  tensor.const_data_ptr(), cast});
}

}  // namespace mezzo
