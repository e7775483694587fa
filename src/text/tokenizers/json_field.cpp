#include "text/tokenizers/json_field.h"

#include <c10/util/Exception.h>

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

void JsonField::expect(bool holds, const std::string& expected) const {
  TORCH_CHECK_VALUE(holds, *file_, ": ", name_.empty() ? "the file" : name_, " must be ", expected, ", got ",
                    describe(*value_), "; check that the file is whole and of a tokenizer that mezzo reads");
}

}  // namespace mezzo::text
