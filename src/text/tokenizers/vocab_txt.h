#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace mezzo::text {

/// A vocab.txt as `{"token": id, ...}`: a token a line, its line number (from 0) its id. Trailing white space is no
/// part of a token, and of equal lines the last counts.
/// @throws c10::ValueError  naming file and line
nlohmann::json read_vocab_txt(const std::filesystem::path& path);

}  // namespace mezzo::text
