#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace mezzo::text {

struct BatchSize {
  int64_t rows;
  int64_t longest;  ///< tokens of its longest sequence
};

/// Rounds sizes of batches up to a few kinds, so that one graph serves many batches. With fewer kinds, fewer batches
/// wait for a recording, and the others compute more filler. Chosen for the sizes that come up.
class BatchKinds {
 public:
  /// @param expected  sizes of batches to come, in any order; other sizes are rounded to a dozen kinds from 512 rows to
  ///   2,048
  /// @param max_tokens  that a sequence may have
  BatchKinds(const std::vector<BatchSize>& expected, int64_t max_tokens);

  /// No less than `size`. A pure function of `size` and the constructor's arguments.
  BatchSize round_up(BatchSize size) const;

 private:
  int64_t rounded_length(int64_t tokens) const;

  const int64_t max_tokens_;
  std::map<int64_t, std::vector<int64_t>> rows_;  // to round up to, in order, by rounded length
  std::map<int64_t, int64_t> instead_;            // of rounded lengths that are rare
};

}  // namespace mezzo::text
