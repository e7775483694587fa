#include "text/tokenizers/unicode.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace mezzo::text::unicode {
namespace {

struct Composition {
  char32_t first, second, composed;
};

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

char32_t compose(char32_t first, char32_t second) {
  const auto found = std::lower_bound(
      std::begin(kCompositions), std::end(kCompositions), std::pair(first, second),
      [](const Composition& a, const std::pair<char32_t, char32_t>& b) { return std::pair(a.first, a.second) < b; });
  const bool equal = found != std::end(kCompositions) && found->first == first && found->second == second;
  return equal ? found->composed : 0;
}

bool composes_with_previous(char32_t c) {
  static const std::vector<char32_t> seconds = [] {
    std::vector<char32_t> found;
    for (const Composition& composition : kCompositions) found.push_back(composition.second);
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }();
  return std::binary_search(seconds.begin(), seconds.end(), c);
}

std::span<const char32_t> sequence(uint16_t offset, uint8_t length) { return {kSequences + offset, length}; }

}  // namespace mezzo::text::unicode
