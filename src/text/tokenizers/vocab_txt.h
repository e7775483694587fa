#pragma once

#include <filesystem>
#include <string_view>

#include "text/tokenizers/tokenizer_files.h"

namespace mezzo::text {

/// Rust's `str::trim_end`: Unicode white space.
std::string_view trim_end(std::string_view line);

TokenizerSpec read_vocab_txt(const std::filesystem::path& path);

}  // namespace mezzo::text
