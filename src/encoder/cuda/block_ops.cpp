#include "encoder/cuda/block_ops.h"

namespace mezzo::encoder::MEZZO_CUDA {

#define MEZZO_ENTRY(name) .name = name,
const BlockOps kBlockOps = {.takes_columns = true, MEZZO_FOR_BLOCK_OPS(MEZZO_ENTRY)};
#undef MEZZO_ENTRY

}  // namespace mezzo::encoder::MEZZO_CUDA
