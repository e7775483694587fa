#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace mezzo::text {

/// A part of a model: a tensor from tensors. Called twice with the same inputs it must give
/// the same result, so it draws its random numbers from a key, as encoder::dropout does,
/// and not from a generator.
using Segment = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

/// segment(inputs), of which only the inputs are kept for backward; there it is computed once more,
/// under the autocast state and in the ModuleScope of the first time (Chen et al. 2016, "Training
/// deep nets with sublinear memory cost"). Casts of weights are not cached inside, and a CastLog
/// hears of the first time alone.
///
/// Gradients reach `inputs` and `parameters` through the graph of the result. Hooks of gradient
/// accumulators, such as DistributedDataParallel's, see one gradient each. torch::autograd::grad
/// and create_graph work. mezzo::checkpoint would not do: it frees what autograd saves, and the
/// fused blocks of encoder keep attention's state, a separate graph, beside that.
/// @param parameters  every other tensor that `segment` uses and that may need a gradient
/// @throws c10::ValueError  for a parameter with hooks of its own (`register_hook`), which would
///     see the gradient twice
/// @see torch.utils.checkpoint.checkpoint (Python)
at::Tensor checkpointed(Segment segment,
                        const std::vector<at::Tensor>& inputs,
                        const std::vector<at::Tensor>& parameters);

}  // namespace mezzo::text
