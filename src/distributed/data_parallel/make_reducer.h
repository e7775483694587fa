#pragma once

#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <unordered_map>
#include <vector>

namespace mezzo::distributed {

struct ReducerOptions {
  bool find_unused_parameters, static_graph, gradient_as_bucket_view;
  int64_t first_bucket_bytes, bucket_bytes;
};

/// A c10d::Reducer with the buckets that torch.nn.parallel.DistributedDataParallel starts with.
/// @param sparse  of each parameter, whether its gradient is.
std::unique_ptr<c10d::Reducer> make_reducer(const std::vector<at::Tensor>& parameters,
                                            const std::vector<std::string>& names,
                                            const std::vector<bool>& sparse,
                                            const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                            const ReducerOptions& options);

}  // namespace mezzo::distributed
