#pragma once

#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "mezzo/text/dataset.h"

namespace mezzo::app {

/// Gives the texts of a file, or of stdin (one a line), to `use`, in chunks: all
/// of a file at once, stdin as it comes, each line at once from a terminal.
template <class Use>
void for_each_chunk(const std::filesystem::path& data, Use&& use) {
  constexpr size_t kChunk = 1024;
  if (!data.empty()) {
    use(text::load_rows(data, text::LoadRowsOptions().labels_required(false)).texts);
    return;
  }
  const size_t chunk_size = isatty(STDIN_FILENO) ? 1 : kChunk;
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
