#include "mezzo/distributed/group/agreement.h"

namespace mezzo::distributed {

std::function<void(at::Tensor& flags)> found_inf_all_reduce(ProcessGroup& group) {
  return [&group](at::Tensor& flags) { group.all_reduce_max(flags); };
}

}  // namespace mezzo::distributed
