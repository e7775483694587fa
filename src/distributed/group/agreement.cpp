#include "mezzo/distributed/group/agreement.h"

namespace mezzo::distributed {

std::function<void(at::Tensor& flags)> agree_on_found_inf(ProcessGroup& group) {
  return [&group](at::Tensor& flags) { group.all_reduce_max(flags); };
}

}  // namespace mezzo::distributed
