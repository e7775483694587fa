#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "mezzo/text/dataset.h"

namespace mezzo::app {

/// Gives the texts of a file, or of stdin (one a line), to `use`, in chunks, so that what is made of them need not be
/// held for all; each line at once from a terminal.
template <class Use>
void for_each_chunk(const std::filesystem::path& data, Use&& use) {
  constexpr size_t kLines = 1024, kRows = 16384;  // the latter in enough batches for many ranks
  if (!data.empty()) {
    auto texts = text::load_rows(data, text::LoadRowsOptions().labels_required(false)).texts;
    for (size_t begin = 0; begin < texts.size(); begin += kRows) {
      const auto first = texts.begin() + static_cast<ptrdiff_t>(begin);
      const auto last = texts.begin() + static_cast<ptrdiff_t>(std::min(begin + kRows, texts.size()));
      use(std::vector<std::string>(std::make_move_iterator(first), std::make_move_iterator(last)));
    }
    return;
  }
  const size_t chunk_size = isatty(STDIN_FILENO) ? 1 : kLines;
  std::vector<std::string> chunk;
  for (std::string line; std::getline(std::cin, line);) {
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    chunk.push_back(std::move(line));
    if (chunk.size() == chunk_size) {
      use(chunk);
      chunk.clear();
    }
  }
  if (!chunk.empty()) {
    use(chunk);
  }
}

}  // namespace mezzo::app
