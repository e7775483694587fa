#include "kernels/cpu/simd/convert.h"
#include "kernels/cpu/simd/dropped.h"
#include "kernels/cpu/simd/element_kernels.h"
#include "kernels/cpu/simd/philox.h"

namespace mezzo::kernels::cpu::MEZZO_SIMD {

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

}  // namespace mezzo::kernels::cpu::MEZZO_SIMD
