#include "mezzo/distributed/group/agreement.h"

namespace mezzo::distributed {

std::function<void(at::Tensor& flags)> agree_on_found_inf(ProcessGroup& group) {
  return [&group](at::Tensor& flags) { group.all_reduce_max(flags); };
}

std::function<void(at::Tensor& values)> sum_over_ranks(ProcessGroup& group) {
  return [&group](at::Tensor& values) { group.all_reduce_sum(values); };
}

}  // namespace mezzo::distributed
