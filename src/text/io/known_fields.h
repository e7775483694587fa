#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

namespace mezzo::text {

/// How mezzo treats a field of a file that other programs write.
enum class FieldUse {
  kRead,      ///< mezzo reads it, and checks its value
  kNoEffect,  ///< no value of it changes a number of inference or training
  kOnly       ///< mezzo accepts some of its values and refuses the others
};

struct KnownField {
  std::string_view name;
  FieldUse use = FieldUse::kRead;
  std::string_view accepted = "[]";  ///< of kOnly: the values beside null, as a JSON array
  std::string_view advice = "";      ///< of kOnly: ends the message about another value
};

/// Fields that files of some kinds have.
struct KnownFields {
  std::span<const std::string_view> kinds;  ///< as "bert"; all kinds if empty
  std::span<const KnownField> fields;

  bool has_kind(std::string_view kind) const;
};

/// Refuses a field that gives the file a meaning that mezzo does not compute. A field that no table has passes, because
/// transformers ignores it.
/// @param kind  whose fields these are.
/// @throws c10::ValueError  naming the file, the field, its value and the accepted values.
void check_known_fields(const nlohmann::json& object,
                        const std::string& file,
                        std::span<const KnownFields> tables,
                        std::string_view kind = "");

}  // namespace mezzo::text
