#include "encoder/block_ops.h"

#include <array>
#include <atomic>

#include "encoder/cpu/block_ops.h"
#include "encoder/cuda/block_ops.h"

namespace mezzo::encoder {
namespace {

struct Table {
  Table() {
    of(c10::kCPU) = &cpu::kBlockOps;
#ifdef MEZZO_HAS_CUDA
    of(c10::kCUDA) = &cuda::kBlockOps;
#endif
  }
  std::atomic<const BlockOps*>& of(c10::DeviceType device_type) { return ops[static_cast<size_t>(device_type)]; }
  std::array<std::atomic<const BlockOps*>, c10::COMPILE_TIME_MAX_DEVICE_TYPES> ops{};
};

Table& table() {
  static Table table;
  return table;
}

}  // namespace

const BlockOps* block_ops(c10::DeviceType device_type) { return table().of(device_type); }

void set_block_ops(c10::DeviceType device_type, const BlockOps* ops) { table().of(device_type) = ops; }

}  // namespace mezzo::encoder
