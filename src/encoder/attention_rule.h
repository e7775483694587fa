#pragma once

#include <cstdint>

namespace mezzo::encoder {

/// What packed attention computes, as numbers that kernels of every device take: a plain struct
/// without Torch headers. For head h, query i and key j of one sequence: s = scale * (query_i .
/// key_j [+ terms for relative positions]). With a soft cap c, s = c * tanh(s / c); weights =
/// softmax of s over the keys that query i sees. Query i sees the keys i - keys_before to i +
/// keys_after of its sequence.
struct AttentionRule {
  int64_t num_heads = 1, head_size = 0;
  float scale = 1;
  float soft_cap = 0;                       ///< 0 for none
  int64_t keys_before = 0, keys_after = 0;  ///< at most the longest sequence; keys_after is 0 if causal
  bool only_first_queries = false;          ///< `query`, and all that has its rows, has one row a sequence, its first

  /// The first key that query i sees, and the one behind the last, of a sequence of `tokens`.
  constexpr int64_t first_key(int64_t i) const { return i > keys_before ? i - keys_before : 0; }
  constexpr int64_t end_key(int64_t i, int64_t tokens) const {
    return i + keys_after + 1 < tokens ? i + keys_after + 1 : tokens;
  }
};

}  // namespace mezzo::encoder
