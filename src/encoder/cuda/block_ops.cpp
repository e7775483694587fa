#include "encoder/cuda/block_ops.h"

#include "encoder/cuda/attention_launchers.h"

namespace mezzo::encoder::MEZZO_CUDA {

#define MEZZO_ENTRY(name) .name = name,
const BlockOps kBlockOps = {.largest_head = kLargestHead, .takes_columns = true, MEZZO_FOR_BLOCK_OPS(MEZZO_ENTRY)};
#undef MEZZO_ENTRY

}  // namespace mezzo::encoder::MEZZO_CUDA
