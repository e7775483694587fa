#pragma once

#include <cstdint>
#include <vector>

namespace mezzo::benchmarks {

/// The parameters of bert-base-chinese with a classifier of 6 labels: 102
/// million numbers in 201 tensors.
inline std::vector<std::vector<int64_t>> bert_base_shapes() {
  constexpr int64_t kHidden = 768, kIntermediate = 3072, kVocab = 21128;
  std::vector<std::vector<int64_t>> shapes = {{kVocab, kHidden}, {512, kHidden}, {2, kHidden}, {kHidden}, {kHidden}};
  for (int layer = 0; layer < 12; ++layer) {
    for (int projection = 0; projection < 4; ++projection) {  // query, key, value, attention output
      shapes.insert(shapes.end(), {{kHidden, kHidden}, {kHidden}});
    }
    shapes.insert(shapes.end(), {{kHidden}, {kHidden}, {kIntermediate, kHidden}, {kIntermediate}});
    shapes.insert(shapes.end(), {{kHidden, kIntermediate}, {kHidden}, {kHidden}, {kHidden}});
  }
  shapes.insert(shapes.end(), {{kHidden, kHidden}, {kHidden}, {6, kHidden}, {6}});
  return shapes;
}

}  // namespace mezzo::benchmarks
