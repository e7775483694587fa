#include "mezzo/distributed/data_parallel/comm_hooks.h"

#include <ATen/core/jit_type.h>

namespace mezzo::distributed {
namespace {

using Future = c10::intrusive_ptr<c10::ivalue::Future>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

Future all_reduced(const Group& group, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors{tensor};
  return group->allreduce(tensors)->getFuture();
}

/// Writes what `reduced` will hold into `buffer`, and promises that.
Future decompressed(const Future& reduced, const at::Tensor& buffer) {
  return reduced->then(
      [buffer](c10::ivalue::Future& future) {
        buffer.copy_(c10d::detail::parseCppCommHookResult(future.value()));
        return c10::IValue(buffer);
      },
      c10::TensorType::get());
}

Future compress(const Group& group, c10d::GradBucket& bucket, at::ScalarType dtype) {
  const at::Tensor buffer = bucket.getBuffer();
  return decompressed(all_reduced(group, buffer.to(dtype).div_(group->getSize())), buffer);
}

CommHook compress_wrapper(CommHook hook, at::ScalarType dtype) {
  return [hook = std::move(hook), dtype](const Group& group, c10d::GradBucket& bucket) {
    const at::Tensor buffer = bucket.getBuffer();
    auto compressed = buffer.to(dtype);
    bucket.setBuffer(compressed);
    return decompressed(hook(group, bucket), buffer);
  };
}

}  // namespace

Future allreduce_hook(const Group& group, c10d::GradBucket& bucket) {
  return all_reduced(group, bucket.getBufferRef().div_(group->getSize()));
}

Future allreduce_sum_hook(const Group& group, c10d::GradBucket& bucket) {
  return all_reduced(group, bucket.getBufferRef());
}

Future fp16_compress_hook(const Group& group, c10d::GradBucket& bucket) { return compress(group, bucket, at::kHalf); }

Future bf16_compress_hook(const Group& group, c10d::GradBucket& bucket) {
  return compress(group, bucket, at::kBFloat16);
}

CommHook fp16_compress_wrapper(CommHook hook) { return compress_wrapper(std::move(hook), at::kHalf); }
CommHook bf16_compress_wrapper(CommHook hook) { return compress_wrapper(std::move(hook), at::kBFloat16); }

CommHook sum_wrapper(CommHook hook) {
  return [hook = std::move(hook)](const Group& group, c10d::GradBucket& bucket) {
    return hook(group, bucket)
        ->then(
            [size = group->getSize()](c10::ivalue::Future& future) {
              return c10::IValue(c10d::detail::parseCppCommHookResult(future.value()).mul_(size));
            },
            c10::TensorType::get());
  };
}

}  // namespace mezzo::distributed
