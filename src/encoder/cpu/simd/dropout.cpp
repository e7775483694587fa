#include "encoder/cpu/simd/dropout_mask.h"
#include "encoder/cpu/simd/table.h"
#include "kernels/cpu/simd/convert.h"

namespace mezzo::encoder::cpu::MEZZO_SIMD {

void dropout(ConstSpan x, Span output, int64_t first, int64_t count, const Dropout& dropout) {
  constexpr int64_t kRun = 8 * kMaskRun;
  float memory[kRun + 2 * kMaskRun];
  with_elements(x.element, [&]<class Row>(Row) {
    for (int64_t done = 0; done < count; done += kRun) {
      const int64_t at = first + done, run = at_most(kRun, count - done);
      const float* factors = dropout_row(static_cast<uint64_t>(at), run, dropout, memory);
      for_elements(run, [&](int64_t i, auto part) {
        Row::store(output.data, at + i, part, dropped(Row::load(x.data, at + i, part), load(factors + i)));
      });
    }
  });
}

}  // namespace mezzo::encoder::cpu::MEZZO_SIMD
