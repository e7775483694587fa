#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/io/text_input.h"

namespace mezzo::text {

/// Calls `use` with each line, less its line break, and its number until it returns false.
template <class Use>
void for_each_line(TextInput& input, Use&& use) {
  for (int64_t number = 1; !input.at_end(); ++number) {
    std::string line;
    while (!input.at_end()) {
      const std::string_view text = input.at_hand();
      const size_t end = text.find('\n');
      line += text.substr(0, end);
      input.skip(std::min(end, text.size() - 1) + 1);
      if (end != text.npos) break;
    }
    if (line.ends_with('\r')) line.pop_back();
    if (!use(std::move(line), number)) return;
  }
}

}  // namespace mezzo::text
