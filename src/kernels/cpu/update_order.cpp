#include "kernels/cpu/update_order.h"

#include <ATen/Parallel.h>
#include <ATen/ceil_div.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "kernels/cpu/chunks.h"
#include "kernels/cpu/share_out.h"

namespace mezzo::kernels::cpu {
namespace {

/// New memory, whose pages belong to no node before they are written. Null if there is not enough.
c10::DataPtr allocate_unwritten(size_t size) try {
  c10::DataPtr data = c10::GetCPUAllocator()->allocate(size);
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)), begin = reinterpret_cast<uintptr_t>(data.get());
  const uintptr_t first = at::round_up(begin, page), last = (begin + size) / page * page;
  madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);  // it may have been used before
  return data;
} catch (const c10::Error&) {
  return {};
}

bool can_move(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.has_storage() && tensor.is_non_overlapping_and_dense() &&
         tensor.numel() >= kChunk && tensor.nbytes() == tensor.storage().nbytes();
}

}  // namespace

bool& uses_numa_nodes() {
  static bool uses = [] {
    std::ifstream file("/sys/devices/system/node/has_cpu");
    std::string nodes;  // such as 0, 0-1 or 0,2
    return file >> nodes && nodes.find_first_of("-,") != std::string::npos;
  }();
  return uses;
}

void place_in_update_order(const std::vector<at::Tensor>& params, const std::vector<at::Tensor>& tensors) {
  std::vector<int64_t> sizes;
  std::vector<c10::DataPtr> places;
  for (size_t i = 0; i < params.size(); ++i) {
    sizes.push_back(params[i].numel());
    places.push_back(can_move(tensors[i]) ? allocate_unwritten(tensors[i].nbytes()) : c10::DataPtr());
  }
  const auto chunks = cut_into_chunks(sizes);
  const auto count = std::ssize(chunks);
  const int64_t threads = at::get_num_threads();
  at::parallel_for(0, threads, 1, [&](int64_t thread, int64_t) {
    const int64_t end = share_begin(count, thread + 1, threads);
    for (int64_t i = share_begin(count, thread, threads); i < end; ++i) {
      const auto& [index, first, elements] = chunks[i];
      if (const c10::DataPtr& place = places[index]) {
        const auto item = tensors[index].element_size();
        std::memcpy(static_cast<char*>(place.get()) + first * item,
                    static_cast<const char*>(tensors[index].const_data_ptr()) + first * item,
                    static_cast<size_t>(elements * item));
      }
    }
  });
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (places[i]) {
      tensors[i].storage().unsafeGetStorageImpl()->set_data_ptr(std::move(places[i]));
    }
  }
}

}  // namespace mezzo::kernels::cpu
