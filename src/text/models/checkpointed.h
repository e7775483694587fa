#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace mezzo::text {

/// A part of a model: a tensor from tensors. Called twice with the same inputs it must give the same result. So it
/// draws its random numbers from a key, as encoder::dropout does, and not from a generator.
using Segment = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

/// segment(inputs), which keeps only the inputs for backward. Backward computes the segment again, under the autocast
/// state and in the ModuleScope of the first time. See Chen et al. 2016, "Training deep nets with sublinear memory
/// cost". Casts of weights are not cached inside, and a CastLog hears of the first time alone.
///
/// Gradients reach `inputs` and `parameters` through the graph of the result. Hooks of gradient accumulators, such as
/// DistributedDataParallel's, see one gradient each. Works with torch::autograd::grad and create_graph. Why not
/// mezzo::checkpoint: it frees the tensors that autograd saves. The fused blocks of encoder also keep attention's
/// state, a separate graph.
/// @param parameters  every other tensor that `segment` uses and that may need a gradient
/// @throws c10::ValueError  for a parameter with hooks (`register_hook`), which would see the gradient twice
/// @see torch.utils.checkpoint.checkpoint (Python)
at::Tensor checkpointed(Segment segment,
                        const std::vector<at::Tensor>& inputs,
                        const std::vector<at::Tensor>& parameters);

}  // namespace mezzo::text
