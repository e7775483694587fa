#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <string>
#include <unordered_map>

namespace mezzo {

/// The op that computed the contents of a tensor's memory, during the lifetime of that memory. Not
/// thread-safe.
class ValueOrigins {
 public:
  /// @param op  a name that outlives this.
  void wrote(const std::string& op, const at::Tensor& values);
  /// A copy, to another dtype or device, keeps its origin.
  void copied(const at::Tensor& from, const at::Tensor& to);
  /// Empty if no op was seen to write there.
  std::string of(const at::Tensor& values) const;

 private:
  struct Origin {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;  // as long as it is held, its address is not given to another
    const std::string* op;
  };
  const std::string* find(const at::Tensor& values) const;
  void drop_the_dead();

  std::unordered_map<const c10::StorageImpl*, Origin> origins_;
  size_t most_ = 4096;  // from there on those whose memory is gone are dropped
};

}  // namespace mezzo
