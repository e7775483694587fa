#include "encoder/block_ops.h"

#include "encoder/cpu/block_ops.h"
#include "kernels/per_device.h"

namespace mezzo::encoder {
namespace {

PerDevice<const BlockOps*>& table() {
  static PerDevice<const BlockOps*> table(&CudaLibrary::block_ops, {{c10::kCPU, &cpu::kBlockOps}});
  return table;
}

}  // namespace

const BlockOps* block_ops(c10::Device device) { return table().of(device); }

void set_block_ops(c10::DeviceType device_type, const BlockOps* ops) { table().set(device_type, ops); }

}  // namespace mezzo::encoder
