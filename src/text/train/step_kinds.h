#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace mezzo::text {

/// Of a micro-batch.
struct StepSize {
  int64_t rows;
  int64_t longest;  ///< tokens of its longest sequence
};

/// What sizes are rounded up to, so that one graph serves many steps: the fewer kinds there are, the fewer steps wait
/// for one to be recorded, and the more filler the others compute. Chosen for the sizes that come up.
class StepKinds {
 public:
  /// @param expected  sizes of steps to come, in any order; those of all others are rounded to a dozen
  ///   kinds from 512 rows to 2,048
  /// @param max_tokens  that a sequence may have
  StepKinds(const std::vector<StepSize>& expected, int64_t max_tokens);

  /// No less than `size`. A pure function of it and of what the constructor was given.
  StepSize round_up(StepSize size) const;

 private:
  int64_t rounded_length(int64_t tokens) const;

  const int64_t max_tokens_;
  std::map<int64_t, std::vector<int64_t>> rows_;  // to round up to, in order, by rounded length
  std::map<int64_t, int64_t> instead_;            // of rounded lengths that are rare
};

}  // namespace mezzo::text
