#include "text/tokenizers/unicode.h"

#include <iterator>
#include <vector>

namespace mezzo::text::unicode {
namespace {
#include "text/tokenizers/unicode_tables.inc"
}  // namespace

int num_properties() { return static_cast<int>(std::size(kRecords)); }

const Properties& properties_at(int index) { return kRecords[index]; }

int property_index(char32_t c) { return kPages[kPageIndex[c >> kPageBits]][c & ((1 << kPageBits) - 1)]; }

char32_t first_with(int index) {
  static const std::vector<char32_t> first = [] {
    std::vector<char32_t> found(std::size(kRecords));
    for (char32_t c = 0x110000; c-- > 0;) found[property_index(c)] = c;
    return found;
  }();
  return first[index];
}

std::span<const char32_t> sequence(uint16_t offset, uint8_t length) { return {kSequences + offset, length}; }

}  // namespace mezzo::text::unicode
