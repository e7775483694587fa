#pragma once

#include <filesystem>

#include "text/tokenizers/tokenizer_files.h"

namespace mezzo::text {

TokenizerSpec read_vocab_txt(const std::filesystem::path& path);

}  // namespace mezzo::text
