#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <unordered_map>
#include <utility>

namespace mezzo {

/// Low-precision casts of float32 leaf parameters, so that a weight used several times in a region
/// is cast once and gets one gradient. One for each thread (PolicyThread); see AutocastGuard.
///
/// An entry is good for the version of the parameter that it was made from. A parameter updated in place, or given
/// other memory by `set_data`, is cast again.
class CastCache {
 public:
  /// Whether `tensor` is one whose casts are kept: a float32 leaf that requires
  /// a gradient and is not a view.
  static bool takes(const at::Tensor& tensor);

  /// The kept cast of `tensor` to `dtype`; undefined if there is none that is still good.
  at::Tensor find(const at::Tensor& tensor, c10::ScalarType dtype) const;

  /// Whether `cast` is the kept one, for whatever version of `tensor`.
  bool has(const at::Tensor& tensor, const at::Tensor& cast) const;

  void keep(const at::Tensor& tensor, const at::Tensor& cast);
  void clear() { entries_.clear(); }
  size_t size() const { return entries_.size(); }

 private:
  struct Entry {
    c10::weak_intrusive_ptr<c10::TensorImpl> source;  // so that its address is not used for another tensor meanwhile
    int64_t version;
    const void* data;
    at::Tensor cast;
  };
  using Key = std::pair<const c10::TensorImpl*, c10::ScalarType>;  // nested regions may be of different dtypes
  struct KeyHash {
    size_t operator()(const Key& key) const {
      return std::hash<const void*>()(key.first) + static_cast<size_t>(key.second);
    }
  };
  std::unordered_map<Key, Entry, KeyHash> entries_;
};

}  // namespace mezzo
