#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

namespace mezzo::text {

/// vocab.json and merges.txt as the model of a tokenizer.json: "vocab" and "merges".
/// @throws c10::ValueError  naming file and line.
nlohmann::json read_bpe_files(const std::filesystem::path& vocab_json, const std::filesystem::path& merges_txt);

}  // namespace mezzo::text
