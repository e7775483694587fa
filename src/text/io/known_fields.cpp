#include "text/io/known_fields.h"

#include <c10/util/Exception.h>

#include <algorithm>

namespace mezzo::text {
namespace {

/// In one line that is not too long for a message.
std::string shortened(const nlohmann::json& value) {
  constexpr size_t kMostBytes = 80;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  if (text.size() > kMostBytes) text = text.substr(0, kMostBytes - 3) + "...";
  return text;
}

void check(const KnownField& field, const nlohmann::json& value, const std::string& file) {
  const auto accepted = nlohmann::json::parse(field.accepted);
  if (value.is_null() || std::ranges::find(accepted, value) != accepted.end()) return;
  std::string known;
  for (const auto& one : accepted) {
    if (one.is_object()) continue;  // {} means none
    known += (known.empty() ? "" : ", ") + (one.is_string() ? one.get<std::string>() : one.dump());
  }
  TORCH_CHECK_VALUE(false, file, ": ", field.name, " is ", shortened(value),
                    known.empty() ? ", which mezzo does not support" : ", mezzo supports: " + known, field.advice);
}

}  // namespace

bool KnownFields::has_kind(std::string_view kind) const {
  return kinds.empty() || std::ranges::find(kinds, kind) != kinds.end();
}

void check_known_fields(const nlohmann::json& object,
                        const std::string& file,
                        std::span<const KnownFields> tables,
                        std::string_view kind) {
  for (const KnownFields& table : tables) {
    if (!table.has_kind(kind)) continue;
    for (const KnownField& field : table.fields) {
      const auto found = field.use == FieldUse::kOnly ? object.find(field.name) : object.end();
      if (found != object.end()) check(field, *found, file);
    }
  }
}

}  // namespace mezzo::text
