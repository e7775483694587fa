#include "text/tokenizers/json_field.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <limits>

namespace mezzo::text {

namespace {

std::string describe(const nlohmann::json& value) {
  if (value.is_object() && value.contains("type") && value["type"].is_string()) return describe(value["type"]);
  if (value.is_structured()) return value.is_object() ? "an object" : "an array";
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text == "null" ? "nothing" : text;
}

}  // namespace

int32_t JsonField::as_id() const {
  expect(value_->is_number_unsigned() && value_->get<uint64_t>() < std::numeric_limits<int32_t>::max(),
         "an id, a whole number from 0");
  return value_->get<int32_t>();
}

void JsonField::allowed_keys(std::initializer_list<std::string_view> keys) const {
  for (const auto& [key, value] : as_object().items()) {
    if (std::ranges::find(keys, key) != keys.end()) continue;
    std::string known;
    for (const std::string_view name : keys) known += (known.empty() ? "" : ", ") + std::string(name);
    TORCH_CHECK_VALUE(false, *file_, ": ", name_.empty() ? "the file" : name_, " has the key ", quoted_json(key),
                      ", which may change ids in a way that mezzo does not know; it knows ", known,
                      "; remove the key if it changes nothing");
  }
}

void JsonField::expect(bool holds, const std::string& expected) const {
  TORCH_CHECK_VALUE(holds, *file_, ": ", name_.empty() ? "the file" : name_, " must be ", expected, ", got ",
                    describe(*value_), "; check that the file is whole and of a tokenizer that mezzo reads");
}

}  // namespace mezzo::text
