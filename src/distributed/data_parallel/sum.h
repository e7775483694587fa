#pragma once

#include <cstdint>
#include <vector>

namespace mezzo::distributed {

/// out[i] = parts[0][i] + parts[1][i] + …, added in that order, in float32.
void sum_of(const std::vector<const float*>& parts, int64_t count, float* out);

}  // namespace mezzo::distributed
