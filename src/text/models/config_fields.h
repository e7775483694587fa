// Fields of a config.json. Every complaint names the file and the field.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "mezzo/text/models/model_config.h"

namespace mezzo::text {

/// A family's names for the sizes that every family has.
struct SizeNames {
  const char* hidden_size = "hidden_size";
  const char* num_hidden_layers = "num_hidden_layers";
  const char* num_attention_heads = "num_attention_heads";
  const char* intermediate_size = "intermediate_size";
};

class ConfigFields {
 public:
  /// @throws c10::ValueError  for a file that is missing or no JSON object.
  explicit ConfigFields(const std::filesystem::path& file);
  /// @param name  of `text`, for messages
  ConfigFields(std::string_view text, std::string name);

  static constexpr int64_t kMaxSize = int64_t{1} << 24;  // of a dimension; keeps products of two far from overflow
  // A few digits must not take gigabytes, of labels or of tables of positions.
  static constexpr int64_t kMaxUnnamedLabels = 65'536;
  static constexpr int64_t kMaxPositions = 131'072;

  // Each leaves `value` as it is if the field is missing or null.
  void read(const char* name, int64_t& value, int64_t minimum, int64_t maximum = kMaxSize) const;
  void read_number(const char* name, double& value, double below) const;
  void read_one_of(const char* name, std::string& value, const std::vector<std::string_view>& known) const;
  void read_flag(const char* name, bool& value) const;

  /// Refuses fields that make another model of it: see known_config_fields().
  void check_known(std::string_view model_type) const;

  /// The fields of ModelConfig.
  void read_common(ModelConfig& config, const SizeNames& names = {}) const;

  /// The first of architectures; empty if there is none.
  std::string first_architecture() const;

  const std::string& file() const { return file_; }
  /// "config.json: hidden_size "
  std::string at(const char* name) const;
  /// A field as it is; nullptr if it is missing or null.
  const nlohmann::json* json(const char* name) const;
  bool is_null(const char* name) const;
  /// An optional field that may have no other value.
  void expect(const char* name, const nlohmann::json& value) const;

 private:
  std::vector<std::string> read_label_names() const;

  std::string file_;
  nlohmann::json object_;
};

/// transformers' class of a family's models for a problem type, for `architectures`:
/// "BertForSequenceClassification".
/// @throws c10::ValueError  for a problem type without a Task.
std::string architecture(std::string_view family, std::string_view problem_type);

/// problem_type of config.json, null if the architecture tells it.
nlohmann::ordered_json problem_type_field(std::string_view problem_type);

/// The last fields of every family's file: other_token_ids; id2label and label2id, as transformers writes them, unless
/// names are missing.
void add_common_fields(nlohmann::ordered_json& json, const ModelConfig& config);

}  // namespace mezzo::text
