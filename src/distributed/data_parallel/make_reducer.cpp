#include "distributed/data_parallel/make_reducer.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

namespace mezzo::distributed {
namespace {

/// The constructor has one more argument in newer versions of LibTorch: limits for each
/// bucket, of which there are none.
template <class Reducer, class... Args>
std::unique_ptr<Reducer> construct(Args&&... args) {
  using Limits = std::vector<int64_t>;
  if constexpr (std::is_constructible_v<Reducer, Args..., Limits>) {
    return std::make_unique<Reducer>(std::forward<Args>(args)..., Limits());
  } else {
    return std::make_unique<Reducer>(std::forward<Args>(args)...);
  }
}

}  // namespace

std::unique_ptr<c10d::Reducer> make_reducer(const std::vector<at::Tensor>& parameters,
                                            const std::vector<std::string>& names,
                                            const std::vector<bool>& sparse,
                                            const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                            const ReducerOptions& options) {
  // One bucket to begin with, if the first backward finds the order of the gradients.
  std::vector<size_t> limits{std::numeric_limits<int64_t>::max()};
  if (options.find_unused_parameters && !options.static_graph) {
    limits = {static_cast<size_t>(options.first_bucket_bytes), static_cast<size_t>(options.bucket_bytes)};
  }
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, limits, sparse));
  std::reverse(buckets.begin(), buckets.end());  // about the order of backward
  std::unordered_map<size_t, std::string> names_by_index;
  for (size_t i = 0; i < names.size(); ++i) {
    names_by_index[i] = names[i];
  }
  auto reducer = construct<c10d::Reducer>(parameters, std::move(buckets), group, sparse, options.bucket_bytes,
                                          options.find_unused_parameters, options.gradient_as_bucket_view,
                                          std::move(names_by_index), options.first_bucket_bytes,
                                          /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false);
  if (options.static_graph) {
    reducer->set_static_graph();
  }
  return reducer;
}

}  // namespace mezzo::distributed
