#include "distributed/group/tensor_bucket.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>

namespace mezzo::distributed {

bool TensorBucket::fits(const at::Tensor& tensor, int64_t most_bytes) const {
  const at::Tensor& first = tensors_.front();
  return tensor.scalar_type() == first.scalar_type() && tensor.device() == first.device() &&
         bytes() + static_cast<int64_t>(tensor.nbytes()) <= most_bytes;
}

int64_t TensorBucket::bytes() const {
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors_) {
    total += static_cast<int64_t>(tensor.nbytes());
  }
  return total;
}

at::Tensor TensorBucket::packed() const {
  const at::NoGradGuard no_grad;
  if (travels_as_it_is()) {
    return tensors_.front().detach().view({-1});
  }
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors_) {
    parts.push_back(tensor.detach().reshape({-1}));
  }
  return at::cat(parts);
}

at::Tensor TensorBucket::room() const {
  const at::Tensor& first = tensors_.front();
  return travels_as_it_is() ? packed()
                            : at::empty({bytes() / static_cast<int64_t>(first.element_size())}, first.options());
}

void TensorBucket::unpack(const at::Tensor& received) const {
  const at::NoGradGuard no_grad;
  if (travels_as_it_is()) {
    tensors_.front().unsafeGetTensorImpl()->bump_version();  // as copy_ does, for autograd and caches of casts
    return;
  }
  int64_t begin = 0;
  for (const at::Tensor& tensor : tensors_) {
    at::Tensor(tensor).copy_(received.narrow(0, begin, tensor.numel()).view(tensor.sizes()));
    begin += tensor.numel();
  }
}

std::vector<TensorBucket> make_buckets(const std::vector<at::Tensor>& tensors, int64_t most_bytes) {
  std::vector<TensorBucket> buckets;
  for (const at::Tensor& tensor : tensors) {
    const auto open = std::find_if(buckets.rbegin(), buckets.rend(),
                                   [&](const TensorBucket& bucket) { return bucket.fits(tensor, most_bytes); });
    if (open == buckets.rend()) {
      buckets.emplace_back(tensor);
    } else {
      open->add(tensor);
    }
  }
  return buckets;
}

}  // namespace mezzo::distributed
