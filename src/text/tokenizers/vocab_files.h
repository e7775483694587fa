#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "text/tokenizers/json_field.h"

namespace mezzo::text {

/// `{"token": id, ...}`, ascending by id.
/// @throws c10::ValueError  naming file and key, where an id is none or stands twice.
std::vector<std::pair<std::string, int32_t>> read_json_vocab(const JsonField& field);

/// vocab.json and merges.txt as the model of a tokenizer.json: "vocab" and "merges".
/// @throws c10::ValueError  naming file and line.
nlohmann::json read_bpe_files(const std::filesystem::path& vocab_json, const std::filesystem::path& merges_txt);

/// A vocab.txt as `{"token": id, ...}`: a token a line, its line number (from 0) its id. Tokens exclude trailing white
/// space, and of equal lines the last counts.
/// @throws c10::ValueError  naming file and line
nlohmann::json read_vocab_txt(const std::filesystem::path& path);

}  // namespace mezzo::text
