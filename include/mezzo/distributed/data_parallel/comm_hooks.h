#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/ivalue.h>

#include <functional>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace mezzo::distributed {

/// Reduces one bucket of gradients, instead of DistributedDataParallel's all-reduce. Starts the
/// communication and returns a future of the reduced tensor (or of a list that begins with it),
/// with the bucket's number of elements. It must divide by `group->size()`. Called in backward, in
/// the same order on every rank.
///
/// @param group  counts its all-reductions (CommStats)
using CommHook = std::function<c10::intrusive_ptr<c10::ivalue::Future>(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group, c10d::GradBucket& bucket)>;

/// Reduces to the mean of the ranks' gradients.
c10::intrusive_ptr<c10::ivalue::Future> allreduce_hook(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                       c10d::GradBucket& bucket);

/// Reduces to the sum of the ranks' gradients: for losses that are divided by the samples of all
/// ranks. The gradients then equal the gradients of one process.
c10::intrusive_ptr<c10::ivalue::Future> allreduce_sum_hook(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                           c10d::GradBucket& bucket);

/// Sends gradients in float16, half the bytes of float32. They are divided by the number of ranks
/// before the sum, so that the sum cannot overflow if the ranks' gradients do not.
c10::intrusive_ptr<c10::ivalue::Future> fp16_compress_hook(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                           c10d::GradBucket& bucket);

/// Sends gradients in bfloat16: float32's range, with 8 bits of precision.
c10::intrusive_ptr<c10::ivalue::Future> bf16_compress_hook(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                           c10d::GradBucket& bucket);

/// A hook that calls `hook` with a float16 copy of the bucket, and casts the result back.
/// @see torch.distributed.algorithms.ddp_comm_hooks.default_hooks, for this and the other hooks.
CommHook fp16_compress_wrapper(CommHook hook);
/// The same with a bfloat16 copy.
CommHook bf16_compress_wrapper(CommHook hook);

/// Reduces to the sum, by a `hook` that returns the mean.
CommHook sum_wrapper(CommHook hook);

}  // namespace mezzo::distributed
