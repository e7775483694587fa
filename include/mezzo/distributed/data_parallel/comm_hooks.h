#pragma once

#include "mezzo/cpp20.h"

#include <ATen/core/ivalue.h>

#include <functional>
#include <torch/csrc/distributed/c10d/comm.hpp>

namespace mezzo::distributed {

/// Reduces one bucket of gradients in place of DistributedDataParallel's own all-reduce: starts the
/// communication and returns a future of the reduced tensor (or of a list that begins with it), of
/// the bucket's number of elements. It divides by `group->size()` itself. Called in backward, in
/// the same order on every rank.
///
/// @param group  counts its all-reductions (CommStats).
using CommHook = std::function<c10::intrusive_ptr<c10::ivalue::Future>(
    const c10::intrusive_ptr<c10d::ProcessGroup>& group, c10d::GradBucket& bucket)>;

/// The mean of the ranks' gradients.
c10::intrusive_ptr<c10::ivalue::Future> allreduce_hook(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                       c10d::GradBucket& bucket);

/// Their sum: for losses that are divided by the samples of all ranks, so that gradients are as
/// large as one process would have them.
c10::intrusive_ptr<c10::ivalue::Future> allreduce_sum_hook(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                           c10d::GradBucket& bucket);

/// Sends gradients in float16, half the bytes of float32. They are divided by the number of ranks
/// before they are added up, so that sums do not overflow that the ranks' own gradients would not.
c10::intrusive_ptr<c10::ivalue::Future> fp16_compress_hook(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                           c10d::GradBucket& bucket);

/// Sends gradients in bfloat16: float32's range, with 8 bits of precision.
c10::intrusive_ptr<c10::ivalue::Future> bf16_compress_hook(const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                           c10d::GradBucket& bucket);

/// A hook that gives `hook` a float16 copy of the bucket, and casts what it returns back.
/// @see torch.distributed.algorithms.ddp_comm_hooks.default_hooks, for this and the others.
CommHook fp16_compress_wrapper(CommHook hook);
CommHook bf16_compress_wrapper(CommHook hook);

/// The sum, by a `hook` that gives the mean.
CommHook sum_wrapper(CommHook hook);

}  // namespace mezzo::distributed
