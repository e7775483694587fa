#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace mezzo::distributed {

/// Tensors of one dtype and device that travel in one message. One that is alone and
/// contiguous is not copied for it.
class TensorBucket {
 public:
  explicit TensorBucket(const at::Tensor& first) : tensors_{first} {}

  bool fits(const at::Tensor& tensor, int64_t most_bytes) const;
  void add(const at::Tensor& tensor) { tensors_.push_back(tensor); }
  int64_t bytes() const;

  /// What to send: the values one after the other, [elements].
  at::Tensor packed() const;
  /// Where to receive such.
  at::Tensor room() const;
  /// Takes over the received values.
  void unpack(const at::Tensor& received) const;

 private:
  bool travels_as_it_is() const { return tensors_.size() == 1 && tensors_.front().is_contiguous(); }

  std::vector<at::Tensor> tensors_;
};

/// Buckets of at most `most_bytes` bytes, if no single tensor has more. The same on all ranks that give tensors of
/// equal shapes and dtypes.
std::vector<TensorBucket> make_buckets(const std::vector<at::Tensor>& tensors, int64_t most_bytes);

}  // namespace mezzo::distributed
